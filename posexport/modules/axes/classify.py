"""Classifies each axis of the inputs by calls: it varies alone, with others, in steps, from a least size on, or not.

An axis is changed alone first, then with axes of the same size and number in other inputs (a batch), then with all axes
of the same size (both axes of a mask [T, T]), then with those of another number.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from posexport.base.sizes import primes
from posexport.modules.axes.classified import SHARES, Classified, Varying
from posexport.modules.axes.example_calls import ExampleCalls, TensorAxis

#: sizes that axes of size 1 are grown to: the first axis, the other axes
_GROWN, _GROWN_FURTHER = 3, 5
#: up to how many axes of one size are also tried without one of them
_FEW = 3
#: the rank of an input with a batch, a sequence and channels
_WITH_CHANNELS = 3
#: the rank of an input with a batch and columns
_WITH_COLUMNS = 2
#: the numbers of a box, where a module takes points of two numbers as well
_BOX = 4
#: by which parts of its size an axis is made larger to see whether all sizes are accepted: few have both as divisors
_PARTS = (3, 7)
#: calls that the search for a least size does not use up
SPARED = 6


class Classify:
    """Classifies all axes of the example that ``calls`` resizes.

    ``declared``: groups of axes to which the user gave one name. ``followers``: inputs about the tokens of another
    input, as masks are: their axes belong to its groups even where the module does not read them.
    """

    def __init__(self, calls: ExampleCalls, declared: Sequence[tuple[TensorAxis, ...]], followers: set[str]) -> None:
        self._calls, self._followers = calls, followers
        self._declared = {tensor_axis: group for group in declared for tensor_axis in group}

    def run(self, known: set[TensorAxis]) -> Classified | None:
        """The classes of all axes but ``known``; None where the module fails with its example."""
        self._base = {name: tuple(tensor.shape) for name, tensor in self._calls.tensors.items()}
        outputs = self._calls(self._base)
        if outputs is None:
            return None
        self._result = Classified(base=self._base, outputs=outputs)
        self._grow(known)
        first = [name for name in self._base if name not in self._followers]
        for name in (*first, *(name for name in self._base if name in self._followers)):
            for axis in range(len(self._base[name])):
                tensor_axis = (name, axis)
                if (
                    tensor_axis not in known
                    and self._result.of(tensor_axis) is None
                    and tensor_axis not in self._result.fixed
                ):
                    self._classify(tensor_axis)
        self._shrink_fixed()
        for group in self._result.varying:
            self._least(group)
        self._least_together()
        return self._result

    def _at(self, axes: Sequence[TensorAxis], size: int) -> dict[str, tuple[int, ...]]:
        shapes = {name: list(shape) for name, shape in self._base.items()}
        for name, axis in axes:
            shapes[name][axis] = size
        return {name: tuple(shape) for name, shape in shapes.items()}

    def _size(self, tensor_axis: TensorAxis) -> int:
        return self._base[tensor_axis[0]][tensor_axis[1]]

    def _accepts(self, axes: Sequence[TensorAxis], size: int) -> bool:
        return size >= 1 and self._calls(self._at(axes, size)) is not None

    def _grow(self, known: set[TensorAxis]) -> None:
        """Grows axes of size 1, together or else one at a time: size 1 does not show which axes belong together."""
        ones = [(n, a) for n, shape in self._base.items() for a, size in enumerate(shape) if size == 1]
        ones = [tensor_axis for tensor_axis in ones if tensor_axis not in known]
        for number in sorted({axis for _, axis in ones}):
            here = [tensor_axis for tensor_axis in ones if tensor_axis[1] == number]
            for axes in [here, *([[tensor_axis] for tensor_axis in here] if len(here) > 1 else [])]:
                shapes = self._at(axes, _GROWN_FURTHER if number else _GROWN)
                outputs = self._calls(shapes)
                if outputs is not None:
                    self._base = self._result.base = shapes
                    self._result.outputs = outputs
                    break

    def _shrink_fixed(self) -> None:
        """Gives axes that were grown and turn out to be fixed the example's size again."""
        shapes = {name: list(shape) for name, shape in self._base.items()}
        for name, axis in self._result.fixed:
            shapes[name][axis] = self._calls.tensors[name].shape[axis]
        shrunk = {name: tuple(shape) for name, shape in shapes.items()}
        if shrunk != self._base:
            outputs = self._calls(shrunk)
            if outputs is not None:
                self._base = self._result.base = shrunk
                self._result.outputs = outputs

    def _free(self, size: int) -> Iterator[TensorAxis]:
        """Axes of this size that belong to no group yet."""
        for name, shape in self._base.items():
            for axis, other in enumerate(shape):
                if other == size and self._result.of((name, axis)) is None:
                    yield name, axis

    def _classify(self, tensor_axis: TensorAxis) -> None:
        """Puts an axis into a group, or notes why it does not vary."""
        size = self._size(tensor_axis)
        if group := self._group_of_follower(tensor_axis):
            group.members = (*group.members, tensor_axis)
            return
        sets = list(self._sets(tensor_axis, size))
        # one larger, with as few other axes as the module accepts
        for axes in sets:
            if (outputs := self._calls(self._at(axes, size + 1))) is not None:
                members = self._needed(tensor_axis, axes, size + 1) if len(axes) > len(sets[0]) else axes
                # an output that is longer too shows that all of the axis is read
                shows = size == 1 or self._shapes(outputs) != self._shapes(self._result.outputs)
                smaller = outputs if shows else self._calls(self._at(members, size - 1))
                if members == (tensor_axis,) and self._is_cut(members, size, smaller, outputs):
                    self._result.fixed[tensor_axis] = f"the module reads the first {size} and leaves out what is beyond"
                    if smaller is None:
                        self._result.columns.add(tensor_axis)
                elif not shows and self._is_held(members, size):
                    # the last call was of twice the size
                    self._fix_of_few(tensor_axis, size, self._calls.failures[-1])
                elif shows or not self._is_rounded(members, size):
                    self._add(members, size, outputs, size + 1)
                return
        # smaller, or larger in steps
        reason = self._calls.failures[-len(sets)]
        if not any(self._otherwise(axes, size) for axes in sets):
            self._result.fixed[tensor_axis] = reason

    def _is_cut(
        self,
        axes: tuple[TensorAxis, ...],
        size: int,
        smaller: dict[str, Tensor] | None,
        larger: dict[str, Tensor],
    ) -> bool:
        """Whether the module reads exactly the example's elements of an axis (the four of a box), and ignores more.

        Of columns of real numbers it may leave out the last ones of the example too.
        """
        if axes[0] in self._declared or not self._as_before(larger):
            return False
        (name, axis), *_ = axes
        if self._as_before(smaller) and not (axis == 1 and len(self._base[name]) == _WITH_COLUMNS):
            return False
        if self._as_before(smaller) and self._as_before(self._calls(self._at(axes, 1))):
            return False
        # a stride ignores a few more samples, and a maximum those that are no larger
        twice = self._at(axes, 2 * size)
        return self._as_before(self._calls(twice)) and self._as_before(self._calls(twice, others=True))

    def _as_before(self, outputs: dict[str, Tensor] | None) -> bool:
        before = self._result.outputs
        return outputs is not None and all(
            name in before and torch.equal(tensor, before[name]) for name, tensor in outputs.items()
        )

    @staticmethod
    def _shapes(outputs: Mapping[str, Tensor]) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in outputs.items()}

    def _is_held(self, axes: tuple[TensorAxis, ...], size: int) -> bool:
        """Whether sizes near the example's are accepted only because a stride ignores elements (channels of sounds)."""
        (name, axis), *equal_axes = axes
        if equal_axes or not axis or len(self._base[name]) < _WITH_CHANNELS or axes[0] in self._declared:
            return False
        return not any(self._accepts(axes, other) for other in (size // 2, 2 * size))

    def _fix_of_few(self, tensor_axis: TensorAxis, size: int, reason: str) -> None:
        self._result.fixed[tensor_axis] = reason or f"only sizes like {size} are taken"
        self._result.of_few.append(tensor_axis)

    def _is_rounded(self, axes: tuple[TensorAxis, ...], size: int) -> bool:
        """Whether an element more or less is accepted only because a stride rounds; adds the axis with its step if so.

        Sizes between the example's and twice of it are rejected then; the axis is fixed where the module takes neither
        twice as much nor less, as a number of frames that is a multiple but for one.
        """
        between = (size + size // part for part in _PARTS if part < size)
        if all(self._accepts(axes, other) for other in between):
            return False
        reason = self._calls.failures[-1]
        if (outputs := self._calls(self._at(axes, 2 * size))) is None:
            less = (size - size // part for part in _PARTS if part < size)
            if len(axes) > 1 or axes[0] in self._declared or any(self._accepts(axes, other) for other in less):
                return False
            self._fix_of_few(axes[0], size, reason)
            return True
        self._add(axes, size, outputs, 2 * size, step=self._step(axes, size, 1))
        return True

    def _otherwise(self, axes: tuple[TensorAxis, ...], size: int) -> bool:
        """Whether axes that cannot grow by one can shrink, or grow in steps; then they are added."""
        # steps first: features of images that are added to others, which are twice as large, also take one pixel less
        outputs = self._calls(self._at(axes, 2 * size))
        # 2 or 4 numbers, as of points and boxes, are a choice
        if outputs is not None and (2 * size != _BOX or self._accepts(axes, 3 * size)):
            self._add(axes, size, outputs, 2 * size, step=self._step(axes, size, 1))
            return True
        if self._shrunk(axes, size, size - 1):
            return True
        if size % 2 == 0 and size > _BOX and self._shrunk(axes, size, size // 2):
            self._result.varying[-1].step = self._step(axes, size, -1)
            return True
        return False

    def _shrunk(self, axes: tuple[TensorAxis, ...], size: int, new: int) -> bool:
        """Whether axes accept a smaller size, other than one row that is broadcast; then they are added."""
        outputs = self._calls(self._at(axes, new)) if new else None
        if outputs is None:
            return False
        # a stride gives as many frames of one element less: only a far smaller size shows that the axis varies
        as_many = self._shapes(outputs) == self._shapes(self._result.outputs)
        if as_many and new == size - 1 > 1 and not self._accepts(axes, size // 2):
            return False
        if len(axes) == 1 and axes[0] not in self._declared and self._calls.take_one_order(*axes[0]):
            self._result.columns.update(axes)
            return False
        self._add(axes, size, outputs, new, ends=True)
        if new == 1 and not self._result.varying[-1].outputs:
            self._result.varying.pop()
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
        """Adds a group, with the axes of outputs that changed from ``size`` to ``new`` with it."""
        before = {name: tensor.shape for name, tensor in self._result.outputs.items()}
        changed = [
            (name, axis)
            for name, tensor in outputs.items()
            for axis, other in enumerate(tensor.shape)
            if len(before.get(name, ())) == tensor.dim() and (before[name][axis], other) == (size, new)
        ]
        self._result.varying.append(
            Varying(members=members, size=size, step=step, ends=ends, outputs=frozenset(changed))
        )

    def _group_of_follower(self, tensor_axis: TensorAxis) -> Varying | None:
        """The group of an axis of a mask, which the module may not read; None where it has none."""
        if tensor_axis[0] not in self._followers or tensor_axis in self._declared:
            return None
        size, axis = self._size(tensor_axis), tensor_axis[1]
        same_size = [group for group in self._result.varying if group.size == size]
        same_axis = [group for group in same_size if any(number == axis for _, number in group.members)]
        # a mask of pixels has no axis of channels, so that its height has another number
        for group in same_axis or (same_size if len(same_size) == 1 else []):
            if self._accepts((*group.members, tensor_axis), size + group.step):
                return group
        return None

    def _sets(self, tensor_axis: TensorAxis, size: int) -> Iterator[tuple[TensorAxis, ...]]:
        """The sets of axes to change together, the smallest first."""
        alone = self._declared.get(tensor_axis, (tensor_axis,))
        yield alone
        free = [other for other in self._free(size) if other not in alone]
        same_axis = [other for other in free if other[1] == tensor_axis[1]]
        if same_axis:
            yield (*alone, *same_axis)
        if len(free) > len(same_axis):
            yield (*alone, *free)
            numbers = {number for _, number in free}
            # the batch [L, B, C] of states, of as many rows as layers
            for number in sorted(numbers - {tensor_axis[1]}) if len(numbers) > 1 else ():
                yield (*alone, *(other for other in free if other[1] == number))
        if 1 < len(free) <= _FEW:  # one may have this size by chance, as many heads as tokens
            yield from ((*alone, *(tensor_axis for tensor_axis in free if tensor_axis != other)) for other in free)

    def _needed(self, tensor_axis: TensorAxis, axes: tuple[TensorAxis, ...], size: int) -> tuple[TensorAxis, ...]:
        """The ``axes`` that must change together with ``tensor_axis``."""
        needed = axes
        for other in axes:
            declared = self._declared.get(tensor_axis, (tensor_axis,))
            if other not in declared and self._accepts(tuple(p for p in needed if p != other), size):
                needed = tuple(p for p in needed if p != other)
        return needed

    def _step(self, axes: Sequence[TensorAxis], size: int, sign: int) -> int:
        """The smallest divisor of ``size`` by which it can change."""
        step = size
        for prime in primes(size):
            while step % prime == 0 and step // prime > 1 and self._accepts(axes, size + sign * step // prime):
                step //= prime
        return step

    def _least(self, group: Varying) -> None:
        """Finds the smallest size of a group: the first multiple of the step, else by bisection."""
        high, low = group.size // group.step, 0
        if high == 1 or self._calls.left <= SPARED:
            group.least = group.size
            return
        first = 1
        while high - low > 1:
            middle = first or (low + high) // 2
            first = 0
            if self._calls.left <= SPARED:
                break
            if self._accepts_sizes([(group, middle * group.step)]):
                high = middle
            else:
                low = middle
        group.least = high * group.step

    def _least_together(self) -> None:
        """Raises least sizes that the module does not accept together, by one share of the way to the example's.

        A detector chooses 300 of the places of an image: a low image must be wide. The length of a text has no part
        in that, and keeps its least size.
        """
        groups = [group for group in self._result.varying if any(axis for _, axis in group.members)]
        low, high = -1, SHARES
        while len(groups) > 1 and high - low > 1 and self._calls.left > SPARED:
            share = (low + high) // 2 if low >= 0 else 0
            accepted = self._accepts_shares([(group, share) for group in groups])
            low, high = (low, share) if accepted else (share, high)
        if len(groups) < 2 or high == 0:
            return
        # a group that does not help at its full size is not raised
        raised = [
            group
            for group in groups
            if self._calls.left <= SPARED
            or self._accepts_shares([(other, SHARES if other is group else low) for other in groups])
        ]
        if not self._accepts_shares([(group, high if group in raised else 0) for group in groups]):
            raised = groups
        for group in raised:
            group.least = group.between(high)

    def _accepts_shares(self, shares: Sequence[tuple[Varying, int]]) -> bool:
        """Whether the module accepts every group at a share of the way from its least size to the example's."""
        return self._accepts_sizes([(group, group.between(share)) for group, share in shares])

    def _accepts_sizes(self, sizes: Sequence[tuple[Varying, int]]) -> bool:
        """Whether the module accepts groups of these sizes in the smallest batch: a norm has the fewest elements there.

        A batch is of the first axes of inputs with other axes among the groups.
        """
        shapes = {name: list(shape) for name, shape in self._base.items()}
        others = {name for group, _ in sizes for name, axis in group.members if axis}
        batches = [self._result.of((name, 0)) for name in sorted(others)]
        for group, size in [*((batch, batch.least) for batch in batches if batch is not None), *sizes]:
            for name, axis in group.members:
                shapes[name][axis] = size
        return self._calls({name: tuple(shape) for name, shape in shapes.items()}) is not None
