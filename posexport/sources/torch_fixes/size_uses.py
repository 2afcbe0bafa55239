"""The lines of a user's module that make a constant of a size, or branch on one, while it is traced.

PyTorch reports neither: the axis is then specialised, or the graph has one of the two branches.
Its error for a specialised axis names no line. The methods that are patched are those that its logs of it come from.

Issues: pytorch/pytorch 138853 (``int()`` of a size), 152918 (the error names no line). Seen in 2.13.
"""

import dis
import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_false, statically_known_true
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from posexport.base.system.user_code import cite, is_user_file, line_of_frame
from posexport.sources.torch_fixes.patch import patched

_COMPARISONS = ("<", "<=", ">", ">=")
#: the function that gives slices their lengths
_OF_SLICES = "slice_forward"
#: how many divisions after one another are looked through, up to which divisor, and how many multiples are tried
_LEVELS, _LARGEST, _MULTIPLES = 4, 256, 4
#: sizes below which every one is tried
_NEAR = 64


@dataclass
class SizeUses:
    """What became of sizes in a trace.

    Attributes:
        constants: sizes that became numbers, each with the user's line, empty where none is known.
        int_lines: the user's lines that call ``int()`` of a size.
        branches: the user's lines that branch on a size, each with the branch that was traced.
        choices: comparisons of the size of an axis, others being as in the trace, each with the line.
        remainders: axes whose multiples of a number a line treats in another way than other sizes, each with the line.
        equalities: sizes of which something must be a number, as of the rows of a weight, each with the line.
        slices: symbols of the lengths of slices between sizes, which the tracer does not know, each with the line.
        ones: numbers computed of the size of an axis that are 1 in the trace, as of groups of tokens.
    """

    constants: list[tuple[int, str]] = field(default_factory=list)
    int_lines: list[str] = field(default_factory=list)
    branches: dict[str, bool] = field(default_factory=dict)
    choices: dict["Choice", str] = field(default_factory=dict)
    remainders: dict["Remainder", str] = field(default_factory=dict)
    equalities: list[tuple[int, str]] = field(default_factory=list)
    slices: dict[str, str] = field(default_factory=dict)
    ones: list["Choice"] = field(default_factory=list)

    def with_more(self, input_name: str, number: int, most: int) -> int | None:
        """The size to trace an axis at for more than one part of it, with the remainders of the traced size.

        None where no number of parts is 1 in the trace, or is 1 at all sizes up to ``most``.
        """
        sides = [
            (one.other_side(most), one.traced) for one in self.ones if (one.input, one.axis) == (input_name, number)
        ]
        found = [(side, traced) for side, traced in sides if side is not None]
        if not found:
            return None
        size, traced = max(found)
        places = [place for place in self.remainders if (place.input, place.axis) == (input_name, number)]
        size += (traced - size) % math.lcm(*(place.divisor for place in places))
        return size if size <= most else None

    def line_of_constant(self, size: int) -> str:
        """The user's first line that made a constant of ``size``, or called ``int()``; empty where there is none."""
        made, equal = (
            [line for constant, line in found if constant == size and line]
            for found in (self.constants, self.equalities)
        )
        return next(iter(made or self.int_lines or equal), "")


@dataclass(frozen=True)
class Remainder:
    """The size of an axis, by input and number, and a ``divisor``: a branch treats its multiples apart."""

    input: str
    axis: int
    divisor: int


@dataclass(frozen=True)
class Choice:
    """A comparison ``condition`` of the ``size`` of an axis, by input and number, that was decided as ``way``.

    ``is_of_call``: it decided a call, as of ``min`` and ``max``, and no branch. ``traced``: the size in the trace.
    ``others``: inputs, numbers and traced sizes of other axes, for which it is one of ``size`` alone.
    """

    input: str
    axis: int
    size: Any
    condition: Any
    way: bool
    is_of_call: bool
    traced: int
    others: tuple[tuple[str, int, int], ...] = ()

    @property
    def has_sides(self) -> bool:
        """Whether larger or smaller sizes than one are decided otherwise; else single ones, as by ``==``."""
        return getattr(self.condition, "rel_op", "") in _COMPARISONS or bool(self.condition.has(Min, Max))

    def turns(self) -> list[int]:
        """The sizes nearest to the traced one, below and above, that are decided otherwise, as far as numbers show."""
        numbers = {abs(int(number)) for number in self.condition.atoms() if number.is_Integer} - {0}
        ends = {0, *numbers, *(one // other for one in numbers for other in numbers)}
        divisors, steps = (1, *_divisors(self.condition)), (-1, 0, 1)
        near = {(end + step) * divisor for end in ends for step in steps for divisor in divisors}
        sizes = sorted({*range(1, _NEAR), *(size + step for size in near for step in steps if size + step > 0)})
        below = (size for size in reversed(sizes) if size < self.traced and self._is_other(size))
        above = (size for size in sizes if size > self.traced and self._is_other(size))
        return [size for size in (next(below, None), next(above, None)) if size is not None]

    def _is_other(self, size: int) -> bool:
        try:
            return not self.is_same(size)
        except (ArithmeticError, TypeError):  # parts of the condition may not be defined there
            return False

    def other_side(self, most: int) -> int | None:
        """The first size from the traced one on, up to ``most``, that is decided otherwise; None where none is."""
        return next((size for size in range(self.traced, most + 1) if not self.is_same(size)), None)

    def least_of_side(self) -> int:
        """The first size from which on all up to the traced one are decided in the same way."""
        return next((size + 1 for size in range(self.traced, 0, -1) if not self.is_same(size)), 1)

    def is_same(self, size: int) -> bool:
        """Whether it is decided in the same way at another size."""
        return bool(self.condition.subs(self.size, size)) == self.way


@contextmanager
def recording_size_uses(uses: SizeUses | None = None) -> Iterator[SizeUses]:
    """Record, in ``uses`` or a new record, what the code inside the block does with the sizes of a trace."""
    # the frames that called the tracer are not the module's, even where they are the user's script
    uses, outside = uses or SizeUses(), sys._getframe(2)  # noqa: SLF001 (the generator's, contextlib's, the block's)
    to_bool: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__
    of_size = torch.SymInt.__bool__.__code__
    to_int: Callable[[Any], int] = torch.SymInt.__int__
    float_to_int: Callable[[Any], int] = torch.SymFloat.__int__
    set_replacement = ShapeEnv._set_replacement  # noqa: SLF001

    def record_branch(self: torch.SymBool) -> bool:
        caller = sys._getframe(1)  # noqa: SLF001 (inspect.stack reads files)
        if caller.f_code is of_size and caller.f_back is not None:  # `if n % 2`, without a comparison
            caller = caller.f_back
        known = statically_known_true(self) or statically_known_false(self)
        condition = self.node.expr  # once decided, it has no sizes any more
        axis = None if known else _axis(self)
        divisor = None if axis is None else _divisor(condition)
        branch = to_bool(self)
        if not known and is_user_file(caller.f_code.co_filename):
            line = cite(caller.f_code.co_filename, caller.f_lineno)
            uses.branches.setdefault(line, branch)
            if axis is not None and divisor is not None:
                uses.remainders.setdefault(Remainder(*axis, divisor), line)
            for choice in _choices(self.node.shape_env, condition, branch, is_of_call=_is_in_call(caller)):
                uses.choices.setdefault(choice, line)
        return branch

    def record_int(self: torch.SymInt | torch.SymFloat) -> int:
        caller = sys._getframe(1)  # noqa: SLF001
        if is_user_file(caller.f_code.co_filename):
            uses.int_lines.append(cite(caller.f_code.co_filename, caller.f_lineno))
        return float_to_int(self) if isinstance(self, torch.SymFloat) else to_int(self)

    def record_constant(self: ShapeEnv, symbol: Any, size: Any, message: str) -> None:
        if getattr(size, "is_number", False):
            uses.constants.append((int(size), line_of_frame(sys._getframe(1), outside)))  # noqa: SLF001
        set_replacement(self, symbol, size, message)

    with (
        _recording_equalities(uses, outside),
        _recording_slices(uses, outside),
        _recording_lengths(uses),
        patched(torch.SymBool, "__bool__", record_branch),
        patched(torch.SymInt, "__int__", record_int),
        patched(torch.SymFloat, "__int__", record_int),
        patched(ShapeEnv, "_set_replacement", record_constant),
    ):
        yield uses


@contextmanager
def _recording_equalities(uses: SizeUses, outside: FrameType) -> Iterator[None]:
    guard = ShapeEnv._maybe_guard_rel  # noqa: SLF001

    def record(self: ShapeEnv, condition: Any) -> None:
        symbols: set[Any] = getattr(condition, "free_symbols", set())
        known = symbols & _sizes(self).keys()  # a value of a tensor has no size in the trace
        if getattr(condition, "rel_op", "") == "==" and len(symbols) == len(known) == 1:
            size = _traced(self, next(iter(known)))
            uses.equalities.append((size, line_of_frame(sys._getframe(1), outside)))  # noqa: SLF001
            place = _place(self, symbols) if condition.rhs == 1 and not condition.lhs.is_symbol else None
            if place is not None:
                (symbol,) = symbols
                uses.ones.append(Choice(*place, symbol, condition, way=True, is_of_call=True, traced=size))
        guard(self, condition)

    with patched(ShapeEnv, "_maybe_guard_rel", record):
        yield


@contextmanager
def _recording_lengths(uses: SizeUses) -> Iterator[None]:
    """``len(x)`` of several axes in one makes a number and fixes none of them."""
    to_index: Callable[[torch.SymInt], int] = torch.SymInt.__index__

    def record(self: torch.SymInt) -> int:
        caller = sys._getframe(1)  # noqa: SLF001
        line = cite(caller.f_code.co_filename, caller.f_lineno) if is_user_file(caller.f_code.co_filename) else ""
        if "len(" in line:  # other indices are of lists, and of no graph
            uses.int_lines.append(line)
        return to_index(self)

    with patched(torch.SymInt, "__index__", record):
        yield


@contextmanager
def _recording_slices(uses: SizeUses, outside: FrameType) -> Iterator[None]:
    create = ShapeEnv.create_unbacked_symint

    def record(self: ShapeEnv, *args: Any) -> torch.SymInt:
        length, caller = create(self, *args), sys._getframe(1)  # noqa: SLF001
        # a later attempt of the tracer, by bytecode, has no frames of the user's
        if caller.f_code.co_name == _OF_SLICES and (line := line_of_frame(caller, outside)):
            uses.slices.setdefault(str(length), line)
        return length

    with patched(ShapeEnv, "create_unbacked_symint", record):
        yield


def _traced(sizes: ShapeEnv, size: Any) -> int:
    """The size in the trace."""
    return int(_sizes(sizes)[size])


def _sizes(sizes: ShapeEnv) -> dict[Any, Any]:
    """The sizes in the trace by their symbols; ``var_to_val`` is its name before 2.13."""
    known: dict[Any, Any] = sizes.backed_var_to_val if hasattr(sizes, "backed_var_to_val") else sizes.var_to_val
    return known


def _is_in_call(frame: FrameType) -> bool:
    """Whether a frame is in a call of a function without one, as ``min`` is."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL")


def _axis(branch: torch.SymBool) -> tuple[str, int] | None:
    """The axis, by input and number, of the only size in a branch; None for another branch."""
    return _place(branch.node.shape_env, branch.node.expr.free_symbols)


def _place(sizes: Any, symbols: Collection[Any]) -> tuple[str, int] | None:
    """The axis of which the only one of ``symbols`` is the size; None for several, and for other symbols."""
    sources = sizes.var_to_sources.get(next(iter(symbols)), []) if len(symbols) == 1 else []
    named = (source for source in sources if hasattr(getattr(source, "base", None), "local_name"))
    return next(((source.base.local_name, source.idx) for source in named), None)


def _choices(sizes: ShapeEnv, condition: Any, way: bool, *, is_of_call: bool) -> Iterator[Choice]:
    """Yields a comparison of sizes as one of the size of each axis, where the others are as in the trace."""
    places = {symbol: _place(sizes, [symbol]) for symbol in sorted(condition.free_symbols, key=str)}
    for symbol, place in places.items() if all(places.values()) else ():  # values of tensors have no place
        others = {other: _traced(sizes, other) for other in places if other != symbol}
        alone = condition.subs(others)
        if place is not None and alone.free_symbols == {symbol}:
            known = tuple((*where, others[other]) for other, where in places.items() if other in others and where)
            yield Choice(*place, symbol, alone, way, is_of_call, _traced(sizes, symbol), known)


def _divisor(condition: Any) -> int | None:
    """The number whose multiples are treated apart, as in ``if length % 8: pad``; None where there is none."""
    (size,) = condition.free_symbols
    return next((number for number in _divisors(condition) if _is_apart(condition, size, number)), None)


def _divisors(condition: Any) -> list[int]:
    """The numbers that a condition divides by, and products of them: two layers of stride 2 count in steps of 4."""
    divisions = [division.args[1] for division in condition.atoms(Mod, PythonMod, FloorDiv)]
    numbers = {int(number) for number in divisions if number.is_number}
    products = (
        math.prod(chosen)
        for count in range(1, _LEVELS + 1)
        for chosen in itertools.combinations_with_replacement(sorted(numbers), count)
    )
    return sorted({product for product in products if product in numbers or 1 < product <= _LARGEST})


def _is_apart(condition: Any, size: Any, divisor: int) -> bool:
    """Whether all multiples of ``divisor`` take one branch, and some size between them the other."""
    try:
        of_multiples = {bool(condition.subs(size, times * divisor)) for times in range(2, _MULTIPLES + 2)}
        between = (bool(condition.subs(size, 2 * divisor + rest)) for rest in range(1, divisor))
        return len(of_multiples) == 1 and any(way not in of_multiples for way in between)
    except ArithmeticError:  # other parts of the condition may not be defined at these sizes
        return False
