"""Functions with two implementations: PyTorch operations, and nodes of the graph that ``torch.onnx.export`` traces.

No other module asks whether the exporter is running.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def traced_as(emit: Callable[_P, _R]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a function that computes in PyTorch: while ``torch.onnx.export`` traces, ``emit`` replaces it."""

    def decorate(compute: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(compute)
        def either(*args: _P.args, **named: _P.kwargs) -> _R:
            import torch

            return (emit if torch.onnx.is_in_onnx_export() else compute)(*args, **named)

        return either

    return decorate
