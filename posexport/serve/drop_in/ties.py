"""Which of the axes that may vary have one size, found by calling the module with its example in other sizes.

``dynamic_axes`` gives axes names, or none; whether two of them have to be equal (ids and their mask) only the module
knows. Axes of one name are equal. Others are tied where the module takes no different sizes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from posexport.errors import PosexportError
from posexport.modules.axes.example_calls import TensorAxis
from posexport.serve.drop_in.axes import DynamicAxis
from posexport.system.user_code import is_external, line_of_error, raised

Call = Callable[[dict[str, Tensor]], object]


@dataclass(frozen=True)
class Symbol:
    """Axes that have one size: where they are, and how they are called in the file."""

    members: list[TensorAxis]
    axes: list[DynamicAxis]
    size: int

    @property
    def most(self) -> int | None:
        """The largest size that all of them allow."""
        return min((axis.most for axis in self.axes if axis.most is not None), default=None)

    def described(self) -> str:
        """The first of them, in words."""
        (name, axis), own = self.members[0], self.axes[0]
        return f"axis {axis} of input {name!r} ({own.name})"


def tied(label: str, call: Call, tensors: Mapping[str, Tensor], axes: Mapping[TensorAxis, DynamicAxis]) -> list[Symbol]:
    """The symbols of ``axes``; those that are optional and cannot vary are left out.

    ``call``: the module, called with tensors by name.

    Raises:
        PosexportError: an axis that is declared to vary cannot, or axes of one name differ in the example.
    """
    by_name = _by_name(tensors, axes)
    trials = _Trials(call, tensors)
    # sizes that should not fit may do so by chance, so one choice of them is not believed
    for symbols in (by_name, _by_axis(by_name)):
        if not symbols or trials.taken(symbols, times=2):
            return symbols
    symbols = _by_size(by_name)
    return symbols if trials.taken(symbols) else _varying(label, trials, symbols)


def _varying(label: str, trials: "_Trials", symbols: Sequence[Symbol]) -> list[Symbol]:
    """The symbols that vary one at a time, where they do not vary together; an error for one that must and does not."""
    kept = []
    for symbol in symbols:
        alone = [trials.failure([symbol], sizes) for sizes in _sizes([symbol])]
        if None in alone:
            kept.append(symbol)
        elif not all(axis.optional for axis in symbol.axes):
            err = alone[0]
            assert err is not None  # for mypy: none of them is
            raise PosexportError(
                f"{label}: {symbol.described()} is declared to vary and cannot: at another size than the example's "
                f"{symbol.size} the module raised {raised(err)}{_at(err)}"
            ) from err
    if kept and not trials.taken(kept):
        raise PosexportError(
            f"{label}: {' and '.join(symbol.described() for symbol in kept)} vary alone and not together; give axes "
            "that must be equal one name"
        )
    return kept


def _at(err: BaseException) -> str:
    """The user's line that raised, in brackets."""
    line = line_of_error(err)
    return f" ({line})" if line else ""


def _by_name(tensors: Mapping[str, Tensor], axes: Mapping[TensorAxis, DynamicAxis]) -> list[Symbol]:
    """A symbol for every name of the user's, and for every axis without one."""
    found: dict[object, Symbol] = {}
    for (name, axis), dynamic in axes.items():
        size = tensors[name].shape[axis]
        symbol = found.setdefault(dynamic.name if dynamic.named else (name, axis), Symbol([], [], size))
        if symbol.size != size:
            raise PosexportError(
                f"axis {dynamic.name!r} has the size {symbol.size} in the example's {symbol.members[0][0]!r} and "
                f"{size} in its {name!r}; give axes that differ names that differ"
            )
        symbol.members.append((name, axis))
        symbol.axes.append(dynamic)
    return list(found.values())


def _by_axis(symbols: Sequence[Symbol]) -> list[Symbol]:
    """Axes of one size and one number (the batch of two inputs, their sequence) as one."""
    return _merged(symbols, lambda symbol: (symbol.size, symbol.members[0][1]))


def _by_size(symbols: Sequence[Symbol]) -> list[Symbol]:
    """Axes of one size as one."""
    return _merged(symbols, lambda symbol: symbol.size)


def _merged(symbols: Sequence[Symbol], key: Callable[[Symbol], object]) -> list[Symbol]:
    found: dict[object, Symbol] = {}
    for symbol in symbols:
        merged = found.setdefault(key(symbol), Symbol([], [], symbol.size))
        merged.members.extend(symbol.members)
        merged.axes.extend(symbol.axes)
    return list(found.values())


def _sizes(symbols: Sequence[Symbol]) -> Iterator[dict[int, int]]:
    """Sizes to try, by a symbol's place in the list: all different, and none of them 1, which would be broadcast.

    Longer by a few; shorter, where a table is as long as the example; in multiples, which patches need.
    """
    for step in (1, 2):
        yield {i: symbol.size + 2 + step * (i + 1) for i, symbol in enumerate(symbols)}
        yield {i: _shorter(symbol.size, step * (i + 1)) for i, symbol in enumerate(symbols)}
    if symbols and symbols[0].size > 3:
        yield {i: symbol.size * (i + 1) if i else symbol.size // 2 for i, symbol in enumerate(symbols)}
    for step in (1, 2):
        yield {i: symbol.size * (i + 1 + step) for i, symbol in enumerate(symbols)}


def _shorter(size: int, by: int) -> int:
    return size - by if size - by > 1 else size + 3 + by


class _Trials:
    """Calls of the module with its example in other sizes."""

    def __init__(self, call: Call, tensors: Mapping[str, Tensor]) -> None:
        self._call, self._tensors = call, tensors

    def taken(self, symbols: Sequence[Symbol], times: int = 1) -> bool:
        """Whether the module takes so many choices of sizes."""
        taken = (sizes for sizes in _sizes(symbols) if self.failure(symbols, sizes) is None)
        return len(list(islice(taken, times))) == times

    def failure(self, symbols: Sequence[Symbol], sizes: Mapping[int, int]) -> BaseException | None:
        """What the module raised where ``symbols`` have these ``sizes``, and the example's where none is given."""
        tensors = dict(self._tensors)
        for index, size in sizes.items():
            symbol = symbols[index]
            for name, axis in symbol.members:
                tensors[name] = _resized(tensors[name], axis, min(size, symbol.most or size))
        try:
            with torch.no_grad():
                self._call({name: tensor.clone() for name, tensor in tensors.items()})
        except BaseException as err:
            if is_external(err):
                raise
            return err
        return None


def _resized(tensor: Tensor, axis: int, size: int) -> Tensor:
    """A tensor with another size of an axis: its own values in turn, which the module is known to take."""
    return tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
