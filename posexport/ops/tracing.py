"""Whether a function computes in PyTorch, or becomes nodes of the graph that ``torch.onnx.export`` traces.

Nothing else asks the exporter: what is more than PyTorch's own operations in a graph has both functions, side by side.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def traced_as(emit: Callable[_P, _R]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Of a function that computes: while ``torch.onnx.export`` traces, ``emit`` is called in its place."""

    def decorate(compute: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(compute)
        def either(*args: _P.args, **named: _P.kwargs) -> _R:
            return (emit if torch.onnx.is_in_onnx_export() else compute)(*args, **named)

        return either

    return decorate
