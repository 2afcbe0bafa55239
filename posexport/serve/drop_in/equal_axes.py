"""Which dynamic axes must be equal, by calling the module with its example resized.

Axes of the same name in ``dynamic_axes`` are equal. Of the others only the module knows whether they must be equal (ids
and their mask): they are if it raises for different sizes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from posexport.base.system.user_code import line_of_error, raised
from posexport.errors import PosexportError
from posexport.modules.call import CallError, calling
from posexport.serve.drop_in.axes import DynamicAxis, TensorAxis

Call = Callable[[dict[str, Tensor]], object]


@dataclass(frozen=True)
class Symbol:
    """A symbolic size: the axes that have it, with their names in the file, and its value in the example."""

    members: list[TensorAxis]
    axes: list[DynamicAxis]
    size: int

    @property
    def most(self) -> int | None:
        """The largest size that all axes allow."""
        return min((axis.most for axis in self.axes if axis.most is not None), default=None)

    def described(self) -> str:
        (name, axis), dynamic = self.members[0], self.axes[0]
        return f"axis {axis} of input {name!r} ({dynamic.name})"


def equal_axes(
    label: str, call: Call, tensors: Mapping[str, Tensor], axes: Mapping[TensorAxis, DynamicAxis]
) -> list[Symbol]:
    """The symbolic sizes of ``axes``, without optional ones that cannot vary.

    ``call`` runs the module with tensors by name.

    Raises:
        PosexportError: an axis that is declared to vary cannot, or axes of one name differ in the example.
    """
    by_name = _by_name(tensors, axes)
    module = _ResizedCalls(call, tensors)
    # from the fewest equal axes on; wrong sizes may fit by chance, so two choices must be accepted
    for symbols in (by_name, _by_axis(by_name)):
        if not symbols or module.accepts(symbols, times=2):
            return symbols
    symbols = _by_size(by_name)
    return symbols if module.accepts(symbols) else _varying(label, module, symbols)


def _varying(label: str, module: "_ResizedCalls", symbols: Sequence[Symbol]) -> list[Symbol]:
    """The symbols that vary one at a time, if they do not vary together; raises for one that must vary and cannot."""
    varying = []
    for symbol in symbols:
        alone = [module.failure([symbol], sizes) for sizes in _sizes([symbol])]
        if None in alone:
            varying.append(symbol)
        elif not all(axis.optional for axis in symbol.axes):
            err = alone[0]
            assert err is not None  # for mypy: none of them is
            raise PosexportError(
                f"{label}: {symbol.described()} is declared to vary and cannot: at another size than the example's "
                f"{symbol.size} the module raised {raised(err)}{_at(err)}"
            ) from err
    if varying and not module.accepts(varying):
        raise PosexportError(
            f"{label}: {' and '.join(symbol.described() for symbol in varying)} vary alone and not together; give axes "
            "that must be equal one name"
        )
    return varying


def _at(err: BaseException) -> str:
    """The user's line that raised, in brackets."""
    line = line_of_error(err)
    return f" ({line})" if line else ""


def _by_name(tensors: Mapping[str, Tensor], axes: Mapping[TensorAxis, DynamicAxis]) -> list[Symbol]:
    """A symbol for each name, and for each axis without a name."""
    symbols: dict[object, Symbol] = {}
    for (name, axis), dynamic in axes.items():
        size = tensors[name].shape[axis]
        symbol = symbols.setdefault(dynamic.name if dynamic.named else (name, axis), Symbol([], [], size))
        if symbol.size != size:
            raise PosexportError(
                f"axis {dynamic.name!r} has the size {symbol.size} in the example's {symbol.members[0][0]!r} and "
                f"{size} in its {name!r}; give axes that differ names that differ"
            )
        symbol.members.append((name, axis))
        symbol.axes.append(dynamic)
    return list(symbols.values())


def _by_axis(symbols: Sequence[Symbol]) -> list[Symbol]:
    """Merges axes of the same size and index: the batch of two inputs, their sequence."""
    return _merged(symbols, lambda symbol: (symbol.size, symbol.members[0][1]))


def _by_size(symbols: Sequence[Symbol]) -> list[Symbol]:
    return _merged(symbols, lambda symbol: symbol.size)


def _merged(symbols: Sequence[Symbol], key: Callable[[Symbol], object]) -> list[Symbol]:
    by_key: dict[object, Symbol] = {}
    for symbol in symbols:
        merged = by_key.setdefault(key(symbol), Symbol([], [], symbol.size))
        merged.members.extend(symbol.members)
        merged.axes.extend(symbol.axes)
    return list(by_key.values())


def _sizes(symbols: Sequence[Symbol]) -> Iterator[dict[int, int]]:
    """Sizes to try, by a symbol's index: pairwise different, and none is 1, which would broadcast.

    Slightly longer; shorter, for a table that is as long as the example; multiples, for patches.
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


class _ResizedCalls:
    """Calls of the module with its example resized."""

    def __init__(self, call: Call, tensors: Mapping[str, Tensor]) -> None:
        self._call, self._tensors = call, tensors

    def accepts(self, symbols: Sequence[Symbol], times: int = 1) -> bool:
        """Whether the module runs for ``times`` different choices of sizes."""
        accepted = (sizes for sizes in _sizes(symbols) if self.failure(symbols, sizes) is None)
        return len(list(islice(accepted, times))) == times

    def failure(self, symbols: Sequence[Symbol], sizes: Mapping[int, int]) -> BaseException | None:
        """The exception of a call in which ``symbols`` have ``sizes``, by default the example's; None if it ran."""
        tensors = dict(self._tensors)
        for index, size in sizes.items():
            symbol = symbols[index]
            for name, axis in symbol.members:
                tensors[name] = _resized(tensors[name], axis, min(size, symbol.most or size))
        try:
            with calling():
                self._call({name: tensor.clone() for name, tensor in tensors.items()})
        except CallError as failed:
            return failed.error
        except PosexportError as err:
            return err
        return None


def _resized(tensor: Tensor, axis: int, size: int) -> Tensor:
    """``tensor`` with another size of an axis, its values repeated: the module accepts these."""
    return tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
