"""opt_einsum's contractions become ``torch.einsum`` in a trace: the order of its products is searched by sizes.

The order changes how much is computed and by what rounding, nothing else. tensorly calls opt_einsum, and with it
layers of neural operators.

Issue: none is known. Seen in 2.13 with opt_einsum 3.4.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posexport.sources.torch_fixes.patch import patched


def _expression(equation: str, *_: Any, **__: Any) -> Callable[..., Tensor]:
    return partial(torch.einsum, equation)


def _contract(equation: Any, *operands: Any, **_: Any) -> Tensor:
    return torch.einsum(equation, *operands)


@contextmanager
def without_contraction_paths() -> Iterator[None]:
    """Inside the block no path is searched."""
    module = sys.modules.get("opt_einsum")
    with ExitStack() as stack:
        if module is not None:
            stack.enter_context(patched(module, "contract_expression", _expression))
            stack.enter_context(patched(module, "contract", _contract))
        yield
