"""PyTorch's Tensor in annotations: what describes nodes imports without PyTorch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor as Tensor
else:
    Tensor = Any
