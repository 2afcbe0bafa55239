"""einx's elementwise operations keep symbolic sizes in a traced module.

``einx.subtract("j, i -> i j", x, y)`` makes numbers of all sizes (``tuple(int(x) for x in tensor.shape)``) and caches
code by them, so that the graph takes no others. Here an equation of names and ones alone is computed by permutations
and broadcasting; einx computes all other equations.

Reason: einx 0.4.3 caches code by the sizes of its operands, as numbers. Seen in 2.13.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "true_divide": torch.true_divide,
    "divide": torch.true_divide,
    "where": torch.where,
}


class SymbolicEinx(ModuleType):
    """The module ``einx``, with elementwise operations that keep symbolic sizes."""

    def __init__(self, einx: ModuleType) -> None:
        super().__init__("einx")
        self._einx = einx

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._einx, name)
        operation = _OPERATIONS.get(name)
        return function if operation is None else partial(elementwise, operation, function)


def elementwise(
    operation: Callable[..., Tensor], otherwise: Callable[..., Any], equation: str, *operands: Any, **options: Any
) -> Any:
    """``operation`` of ``operands`` in the axes of the equation's output; ``otherwise`` for another equation."""
    terms, arrow, out = equation.partition("->")
    inputs, axes = [term.split() for term in terms.split(",")], out.split()
    names = [name for name in axes if name != "1"]
    known = {*names}
    simple = bool(arrow) and not options and len(inputs) == len(operands) and len(known) == len(names)
    for term, operand in zip(inputs, operands, strict=False):
        simple &= {*term} <= known and len({*term}) == len(term) and all(name.isidentifier() for name in term)
        simple &= len(term) == (operand.ndim if isinstance(operand, Tensor) else 0)
    if not simple:
        return otherwise(equation, *operands, **options)
    return operation(*(_in_axes(x, term, axes) for x, term in zip(operands, inputs, strict=True)))


def _in_axes(x: Any, term: list[str], axes: list[str]) -> Any:
    """A tensor with the axes ``term`` as one with ``axes``, of size 1 where it has none; a number as it is."""
    if not term:
        return x
    x = x.permute([term.index(name) for name in axes if name in term])
    for at, name in enumerate(axes):
        x = x if name in term else x.unsqueeze(at)
    return x
