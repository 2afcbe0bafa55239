"""Branches of a module by the values of its inputs, as ``if not padding.any()``, with equal results of both ways.

A graph has one way. If it gives the outputs of both, as in a shortcut for inputs without padding, the module is traced
with it; the proof, with and without padding, compares the graph with the module as its author wrote it. If no way fits
all inputs that are tried, the tracer refuses the line.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posexport.base.spec import InputSpec
from posexport.base.system.user_code import line_of_frame
from posexport.modules.call import CallError, call
from posexport.sources.example import axis_sizes, example, scaled

#: the way of each branch, by the line of the user's
Ways = dict[str, bool]
#: functions of PyTorch that give Python a truth value
_DECIDE = (Tensor.__bool__, Tensor.__contains__, torch.equal, torch.allclose, torch.is_nonzero)
#: ids that padding mostly has, and how many tokens of a row get one
_PADDING_IDS, _PADDED = (1, 0, 2, 3), 3
#: how many draws of other ids
_DRAWS = 4
#: branches of which both ways are tried together, 2 to the power of it calls at most
_MOST = 3
#: the difference by rounding that is allowed, relative to the largest element
_ROUNDING = 1e-4


class TakingWays(TorchFunctionMode):
    """Takes the known ``ways`` of branches, and records the ways of other branches in ``taken``."""

    def __init__(self, ways: Mapping[str, bool]) -> None:
        super().__init__()
        self.ways = ways
        self.taken: dict[str, set[Any]] = {}
        self._outside: FrameType | None = None

    def __enter__(self) -> "TakingWays":
        """Enter; callers of the block are other ones in a trace, and no part of a branch's line."""
        self._outside = sys._getframe(1)  # noqa: SLF001 (inspect.stack reads files)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        is_number = func is Tensor.item and not args[0].is_floating_point()
        if func not in _DECIDE and not is_number:
            return func(*args, **(kwargs or {}))
        line = line_of_frame(sys._getframe(1), self._outside)  # noqa: SLF001
        if line in self.ways:
            return self.ways[line]
        way = func(*args, **(kwargs or {}))
        if line and isinstance(way, int):  # no symbol of a trace
            self.taken.setdefault(line, set()).add(way)
        return way


def ways_that_fit(module: nn.Module, inputs: list[InputSpec], trace_sizes: Mapping[str, int]) -> Ways:
    """The way of every branch of ``module`` by values that keeps its outputs, with and without padding.

    Empty if the module has no branch by values, or if no ways give the outputs of all inputs that are tried. Give a
    copy: what a module keeps of a call, as a table of the last length, must not be there when it is traced.
    """
    drawn = example(inputs, axis_sizes(inputs, trace_sizes))
    recorded = TakingWays({})
    expected = [_outputs(module, drawn, recorded)]
    if not recorded.taken:
        return {}
    # what the module gives as its author wrote it, for inputs with and without padding
    tried = [drawn, *_padded(inputs, drawn), *_redrawn(inputs, drawn)]
    expected += [_outputs(module, tensors, recorded) for tensors in tried[1:]]
    # a count that was 0 each time, as of rows without tokens, decides; another number may be a size
    taken = {line: ways for line, ways in recorded.taken.items() if all(type(way) is bool or way == 0 for way in ways)}
    open_lines = [line for line, ways in taken.items() if len(ways) > 1]
    if len(open_lines) > _MOST:
        return {}
    known = {line: next(iter(ways)) for line, ways in taken.items() if len(ways) == 1}
    # the first ways that give the same
    for choice in itertools.product((False, True), repeat=len(open_lines)):
        ways = known | dict(zip(open_lines, choice, strict=True))
        got = (_outputs(module, tensors, TakingWays(ways)) for tensors in tried)
        if all(_equal(before, after) for before, after in zip(expected, got, strict=True)):
            return ways
    return {}


def remarks_on(ways: Mapping[str, bool]) -> list[str]:
    """A remark for the user on every branch that the graph fixes."""
    return [
        f"{line} branches by the values of tensors; the graph always takes the way of {way}, which gives the same "
        "outputs for the inputs that were tried"
        for line, way in ways.items()
    ]


def _padded(inputs: Sequence[InputSpec], drawn: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Inputs with padding at the end of the first row: by the mask, or by an id."""
    for spec in inputs:
        tensor = drawn[spec.name]
        if tensor.dim() < 2 or tensor.shape[-1] <= _PADDED:
            continue
        if spec.role == "mask":
            yield {**drawn, spec.name: _ending(tensor, spec.padding)}
        elif spec.role == "tokens":
            sized = [number for number in _PADDING_IDS if spec.size is None or number < spec.size]
            yield from ({**drawn, spec.name: _ending(tensor, number)} for number in sized)


def _redrawn(inputs: Sequence[InputSpec], drawn: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Inputs with other values: of the other sign, far smaller and larger; and ids that are not padding's."""
    generator = torch.Generator().manual_seed(0)
    for spec in inputs:
        tensor, least = drawn[spec.name], max(_PADDING_IDS) + 1
        if spec.role == "values":
            sign, largest = 1 if spec.positive is True else -1, 1 if isinstance(spec.at_most, float) else 100
            yield from ({**drawn, spec.name: scaled(spec, tensor, factor)} for factor in (sign, 0.01, sign * largest))
        elif spec.role == "tokens" and spec.size is not None and spec.size > least and not spec.column_sizes:
            for _ in range(_DRAWS):
                yield {**drawn, spec.name: torch.randint(least, spec.size, tensor.shape, generator=generator)}


def _ending(tensor: Tensor, value: int) -> Tensor:
    padded = tensor.clone()
    padded[:1, ..., -_PADDED:] = value
    return padded


def _outputs(module: nn.Module, tensors: Mapping[str, Tensor], mode: TakingWays) -> dict[str, Tensor] | None:
    """The outputs; None where the module fails: it may reject padding."""
    try:
        return call(module, tensors, mode=mode)
    except CallError:
        return None


def _equal(before: Mapping[str, Tensor] | None, after: Mapping[str, Tensor] | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.keys() == after.keys() and all(
        tensor.shape == after[name].shape
        and torch.allclose(tensor, after[name], rtol=0, atol=_ROUNDING * float(tensor.abs().max()), equal_nan=True)
        if tensor.is_floating_point()
        else torch.equal(tensor, after[name])
        for name, tensor in before.items()
    )
