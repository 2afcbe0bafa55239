"""How each axis of the inputs varies: freely, with other axes, in steps, from a least size on, or not at all.

An axis is tried alone, then with those of its size that have the same number in other inputs (a batch), then with
all of its size (both axes of a mask [T, T]).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posexport.modules.axes.example_calls import ExampleCalls, TensorAxis

#: sizes that axes of an example of 1 are grown to: the first axis, the others
_GROWN, _GROWN_FURTHER = 3, 5
#: axes of one size of which one at a time is left out
_FEW = 3
#: axes of an input that has channels beside a batch and a sequence
_WITH_CHANNELS = 3
#: calls that the search for a least size leaves to others
_SPARED = 6


@dataclass(kw_only=True)
class Varying:
    """Axes that have one size.

    Attributes:
        members: names of inputs, and numbers of the axis in them.
        size: the example's, grown where that is 1.
        step: all sizes are multiples of it.
        least: the smallest size that is taken.
        ends: the example's size is the largest.
        outputs: the axes of outputs that had the new size too.
    """

    members: tuple[TensorAxis, ...]
    size: int
    step: int = 1
    least: int = 1
    ends: bool = False
    outputs: frozenset[TensorAxis] = frozenset()


@dataclass(kw_only=True)
class Classified:
    """``fixed``: the failure of every axis that does not vary. ``base``: shapes that the module takes.

    ``columns``: of those that do not vary, axes of which the module reads each place, and takes no fewer.
    """

    varying: list[Varying] = field(default_factory=list)
    fixed: dict[TensorAxis, str] = field(default_factory=dict)
    columns: set[TensorAxis] = field(default_factory=set)
    base: dict[str, tuple[int, ...]]
    outputs: dict[str, Tensor]

    def of(self, tensor_axis: TensorAxis) -> Varying | None:
        """The group of an axis."""
        return next((group for group in self.varying if tensor_axis in group.members), None)


class Classify:
    """All axes of the example that ``calls`` resizes. ``declared``: axes that the user says have one size.

    ``followers``: inputs that say something of another's tokens, as masks do: they follow it even where they are not
    read.
    """

    def __init__(self, calls: ExampleCalls, declared: Sequence[tuple[TensorAxis, ...]], followers: set[str]) -> None:
        self._calls, self._followers = calls, followers
        self._declared = {tensor_axis: group for group in declared for tensor_axis in group}

    def run(self, settled: set[TensorAxis]) -> Classified | None:
        """None where the module does not even take its example. ``settled`` axes are not looked at."""
        self._base = {name: tuple(tensor.shape) for name, tensor in self._calls.tensors.items()}
        outputs = self._calls(self._base)
        if outputs is None:
            return None
        self._found = Classified(base=self._base, outputs=outputs)
        self._grow(settled)
        first = [name for name in self._base if name not in self._followers]
        for name in (*first, *(name for name in self._base if name in self._followers)):
            for axis in range(len(self._base[name])):
                tensor_axis = (name, axis)
                if (
                    tensor_axis not in settled
                    and self._found.of(tensor_axis) is None
                    and tensor_axis not in self._found.fixed
                ):
                    self._classify(tensor_axis)
        self._shrink_what_is_fixed()
        for group in self._found.varying:
            self._least(group)
        return self._found

    def _at(self, axes: Sequence[TensorAxis], size: int) -> dict[str, tuple[int, ...]]:
        shapes = {name: list(shape) for name, shape in self._base.items()}
        for name, axis in axes:
            shapes[name][axis] = size
        return {name: tuple(shape) for name, shape in shapes.items()}

    def _size(self, tensor_axis: TensorAxis) -> int:
        return self._base[tensor_axis[0]][tensor_axis[1]]

    def _takes(self, axes: Sequence[TensorAxis], size: int) -> bool:
        return size >= 1 and self._calls(self._at(axes, size)) is not None

    def _grow(self, settled: set[TensorAxis]) -> None:
        """Axes of size 1, together and else alone: at 1 nothing shows which axes belong together."""
        ones = [(n, a) for n, shape in self._base.items() for a, size in enumerate(shape) if size == 1]
        ones = [tensor_axis for tensor_axis in ones if tensor_axis not in settled]
        for number in sorted({axis for _, axis in ones}):
            here = [tensor_axis for tensor_axis in ones if tensor_axis[1] == number]
            for axes in [here, *([[tensor_axis] for tensor_axis in here] if len(here) > 1 else [])]:
                shapes = self._at(axes, _GROWN_FURTHER if number else _GROWN)
                outputs = self._calls(shapes)
                if outputs is not None:
                    self._base = self._found.base = shapes
                    self._found.outputs = outputs
                    break

    def _shrink_what_is_fixed(self) -> None:
        """What was grown to one size and then takes no other is the example's again."""
        shapes = {name: list(shape) for name, shape in self._base.items()}
        for name, axis in self._found.fixed:
            shapes[name][axis] = self._calls.tensors[name].shape[axis]
        shrunk = {name: tuple(shape) for name, shape in shapes.items()}
        if shrunk != self._base:
            outputs = self._calls(shrunk)
            if outputs is not None:
                self._base = self._found.base = shrunk
                self._found.outputs = outputs

    def _free(self, size: int) -> Iterator[TensorAxis]:
        """Axes of this size of which nothing is known."""
        for name, shape in self._base.items():
            for axis, other in enumerate(shape):
                if other == size and self._found.of((name, axis)) is None:
                    yield name, axis

    def _classify(self, tensor_axis: TensorAxis) -> None:
        size = self._size(tensor_axis)
        if group := self._followed(tensor_axis):
            group.members = (*group.members, tensor_axis)
            return
        sets = list(self._sets(tensor_axis, size))
        for axes in sets:
            if (outputs := self._calls(self._at(axes, size + 1))) is not None:
                members = self._needed(tensor_axis, axes, size + 1) if len(axes) > len(sets[0]) else axes
                # an output that is longer too shows that all of the axis is read
                shows = size == 1 or self._shapes(outputs) != self._shapes(self._found.outputs)
                smaller = outputs if shows else self._calls(self._at(members, size - 1))
                if members == (tensor_axis,) and self._is_cut(members, size, smaller, outputs):
                    self._found.fixed[tensor_axis] = f"the module reads the first {size} and leaves out what is beyond"
                    if smaller is None:
                        self._found.columns.add(tensor_axis)
                elif not shows and self._is_held(members, size):
                    # the last call was of twice the size
                    self._found.fixed[tensor_axis] = self._calls.failures[-1] or f"only sizes like {size} are taken"
                elif smaller is not None or not self._is_floored(members, size):
                    self._add(members, size, outputs, size + 1)
                return
        reason = self._calls.failures[-len(sets)]
        if not any(self._otherwise(axes, size) for axes in sets):
            self._found.fixed[tensor_axis] = reason

    def _is_cut(
        self,
        axes: tuple[TensorAxis, ...],
        size: int,
        smaller: dict[str, Tensor] | None,
        larger: dict[str, Tensor],
    ) -> bool:
        """Whether the module reads all of an axis, as the four numbers of a box, and nothing that is added to it."""
        if axes[0] in self._declared or not self._as_before(larger) or self._as_before(smaller):
            return False
        return self._as_before(self._calls(self._at(axes, 2 * size)))  # samples are left out up to a stride

    def _as_before(self, outputs: dict[str, Tensor] | None) -> bool:
        before = self._found.outputs
        return outputs is not None and all(
            name in before and torch.equal(tensor, before[name]) for name, tensor in outputs.items()
        )

    @staticmethod
    def _shapes(outputs: Mapping[str, Tensor]) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in outputs.items()}

    def _is_held(self, axes: tuple[TensorAxis, ...], size: int) -> bool:
        """Whether sizes near the example's are taken only because a stride leaves some out: channels of sounds."""
        (name, axis), *others = axes
        if others or not axis or len(self._base[name]) < _WITH_CHANNELS or axes[0] in self._declared:
            return False
        return not any(self._takes(axes, other) for other in (size // 2, 2 * size))

    def _is_floored(self, axes: tuple[TensorAxis, ...], size: int) -> bool:
        """Whether one more is taken only because a stride leaves it out: an axis that varies in steps, and is added."""
        if self._takes(axes, 2 * size - 1) or (outputs := self._calls(self._at(axes, 2 * size))) is None:
            return False
        self._add(axes, size, outputs, 2 * size, step=self._step(axes, size, 1))
        return True

    def _otherwise(self, axes: tuple[TensorAxis, ...], size: int) -> bool:
        """Whether axes that cannot be one larger can be smaller, or larger in steps."""
        if self._shrunk(axes, size, size - 1):
            return True
        if (outputs := self._calls(self._at(axes, 2 * size))) is not None:
            self._add(axes, size, outputs, 2 * size, step=self._step(axes, size, 1))
            return True
        if size % 2 == 0 and self._shrunk(axes, size, size // 2):
            self._found.varying[-1].step = self._step(axes, size, -1)
            return True
        return False

    def _shrunk(self, axes: tuple[TensorAxis, ...], size: int, new: int) -> bool:
        """Whether axes can have a size below the example's. One row that is broadcast to what is fixed is none."""
        outputs = self._calls(self._at(axes, new)) if new else None
        if outputs is None:
            return False
        self._add(axes, size, outputs, new, ends=True)
        if new == 1 and not self._found.varying[-1].outputs:
            self._found.varying.pop()
            return False
        return True

    def _add(
        self,
        members: tuple[TensorAxis, ...],
        size: int,
        outputs: dict[str, Tensor],
        new: int,
        step: int = 1,
        ends: bool = False,
    ) -> None:
        """A group, with the axes of outputs that went from ``size`` to ``new`` with it."""
        before = {name: tensor.shape for name, tensor in self._found.outputs.items()}
        followed = [
            (name, axis)
            for name, tensor in outputs.items()
            for axis, other in enumerate(tensor.shape)
            if len(before.get(name, ())) == tensor.dim() and (before[name][axis], other) == (size, new)
        ]
        self._found.varying.append(
            Varying(members=members, size=size, step=step, ends=ends, outputs=frozenset(followed))
        )

    def _followed(self, tensor_axis: TensorAxis) -> Varying | None:
        """The group that an axis of a mask belongs to, though the module may not read the mask."""
        if tensor_axis[0] not in self._followers or tensor_axis in self._declared:
            return None
        size, axis = self._size(tensor_axis), tensor_axis[1]
        alike = [group for group in self._found.varying if group.size == size]
        here = [group for group in alike if any(number == axis for _, number in group.members)]
        # that of pixels has no axis of channels: its height has another number
        for group in here or (alike if len(alike) == 1 else []):
            if self._takes((*group.members, tensor_axis), size + group.step):
                return group
        return None

    def _sets(self, tensor_axis: TensorAxis, size: int) -> Iterator[tuple[TensorAxis, ...]]:
        """The axes to change at once, the fewest first."""
        alone = self._declared.get(tensor_axis, (tensor_axis,))
        yield alone
        free = [other for other in self._free(size) if other not in alone]
        there = [other for other in free if other[1] == tensor_axis[1]]
        if there:
            yield (*alone, *there)
        if len(free) > len(there):
            yield (*alone, *free)
        if 1 < len(free) <= _FEW:  # one of them may have the size by chance: as many heads as tokens
            yield from ((*alone, *(tensor_axis for tensor_axis in free if tensor_axis != other)) for other in free)

    def _needed(self, tensor_axis: TensorAxis, axes: tuple[TensorAxis, ...], size: int) -> tuple[TensorAxis, ...]:
        """Those of ``axes`` without which the others do not vary."""
        kept = axes
        for other in axes:
            declared = self._declared.get(tensor_axis, (tensor_axis,))
            if other not in declared and self._takes(tuple(p for p in kept if p != other), size):
                kept = tuple(p for p in kept if p != other)
        return kept

    def _step(self, axes: Sequence[TensorAxis], size: int, sign: int) -> int:
        """The smallest divisor of ``size`` by which it may be changed."""
        step = size
        for prime in _primes(size):
            while step % prime == 0 and step // prime > 1 and self._takes(axes, size + sign * step // prime):
                step //= prime
        return step

    def _least(self, group: Varying) -> None:
        """The smallest size: the first multiple of the step, or by bisection."""
        high, low = group.size // group.step, 0
        if high == 1 or self._calls.left <= _SPARED:
            group.least = group.size
            return
        first = 1
        while high - low > 1:
            middle = first or (low + high) // 2
            first = 0
            if self._calls.left <= _SPARED:
                break
            if self._takes(group.members, middle * group.step):
                high = middle
            else:
                low = middle
        group.least = high * group.step


def _primes(number: int) -> Iterator[int]:
    divisor = 2
    while number > 1:
        if number % divisor == 0:
            yield divisor
            while number % divisor == 0:
                number //= divisor
        divisor += 1
