"""Floor division of sizes that rounds down where the numerator may be negative, as Python's ``//``.

The exporter writes ONNX's Div, which rounds towards zero. A size below 0 is common, also where the user wrote none:
PyTorch makes ``6 + -n // 2`` of ``(12 - n) // 2``. Without a word, a crop at the centre of a table starts one row late.

Reason: ``operator_floordiv`` of onnxscript, "only for positive inputs". Seen in 2.13 with onnxscript 0.7.
"""

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from onnxscript import opset18 as op18
from torch.onnx._internal.exporter import _dispatching
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from posexport.sources.torch_fixes.patch import patched

#: PyTorch assumes of a size without a least one that it is 2 or more
_ASSUMED = 2
_ROUNDED = (math.ceil, math.floor)


@contextmanager
def with_floor_division() -> Iterator[None]:
    """Inside the block the exporter rounds ``//`` of sizes down; what cannot be negative stays one Div."""
    dispatch = _dispatching.dispatch

    def dispatch_floor(node: torch.fx.Node, registry: Any) -> tuple[Callable[..., Any] | None, str]:
        if node.target is operator.floordiv and not all(map(_is_never_negative, node.args)):
            return _floored, "rounded down"
        if node.target in _ROUNDED and _is_whole(node.args[0]):
            return op18.Identity, "whole already"  # ONNX's Ceil and Floor take no integers
        return dispatch(node, registry)

    with patched(_dispatching, "dispatch", dispatch_floor):
        yield


def _floored(a: Any, b: Any) -> Any:
    """Mod has the sign of ``b`` in ONNX, as in Python, so that the difference is a multiple of ``b``."""
    return op18.Div(op18.Sub(a, op18.Mod(a, b)), b)


def _is_whole(arg: Any) -> bool:
    return isinstance(arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg, int | torch.SymInt)


def _is_never_negative(arg: Any) -> bool:
    """Whether a number, or a size as the tracer knows it, is 0 or more at every size of the inputs."""
    value = arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg
    if not isinstance(value, torch.SymInt):
        return bool(value >= 0)
    known = value.node.shape_env.var_to_range
    ranges = {symbol: _from_zero(known[symbol]) for symbol in value.node.expr.free_symbols}
    return bool(bound_sympy(value.node.expr, ranges).lower >= 0)


def _from_zero(sizes: Any) -> Any:
    """A range with 0, as of past tokens, unless a least size was declared."""
    return ValueRanges(min(sizes.lower, 0), sizes.upper) if sizes.lower <= _ASSUMED else sizes
