"""NumPy's functions of sizes in a trace, as functions of tensors: ``x[..., np.arange(-1, x.shape[-1] + 1).clip(0)]``.

NumPy makes arrays of objects of symbolic sizes, for which it has few functions. PyTorch has NumPy's functions for
tensors (``torch._numpy``), which take over where an argument is a size or was computed of one.

Issue: pytorch/pytorch 138853. Seen in 2.13.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch._numpy as of_tensors

#: functions that ``torch._numpy`` has by another name
_NAMES = {"asanyarray": "asarray", "array": "asarray"}
_SIZES = (torch.SymInt, torch.SymFloat, of_tensors.ndarray)


class _Function:
    """A function of NumPy that computes with sizes too."""

    def __init__(self, function: Callable[..., Any], of_sizes: Callable[..., Any]) -> None:
        self._function, self._of_sizes = function, of_sizes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._of_sizes if _has_size(args) else self._function)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def function(name: str) -> Any:
    """``np.name``."""
    value, of_sizes = getattr(np, name), getattr(of_tensors, _NAMES.get(name, name), None)
    if isinstance(value, type) or not callable(value) or of_sizes is None:
        return value
    return _Function(value, of_sizes)


def as_index(index: Any) -> Any:
    """An index of a tensor, with tensors in place of arrays that were computed of sizes."""
    if isinstance(index, tuple):
        return tuple(map(as_index, index))
    return index.tensor.long() if isinstance(index, of_tensors.ndarray) else index


def _has_size(values: Any) -> bool:
    return any(_has_size(value) if isinstance(value, list | tuple) else isinstance(value, _SIZES) for value in values)
