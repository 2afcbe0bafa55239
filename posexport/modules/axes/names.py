"""Names the axes that vary: by rank, dtype, the names of inputs, and which inputs share them."""

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, HEIGHT, SAMPLES, SEQUENCE, WIDTH
from posexport.modules.axes.classified import Classified, Varying
from posexport.modules.axes.example_calls import counts_tokens

#: parts of names of inputs that cross attention reads, and of inputs that query them
_READ = ("encoder", "memory", "context", "source", "src", "cross", "kv", "key", "value", "cond")
_INPUTS = re.compile("(pixel|input)_values")  # images and sounds of transformers, which no queries read
_READING = ("decoder", "target", "tgt", "quer")
#: the most channels of an image
MOST_CHANNELS = 4
#: the ranks of ids [B, T] and of one image
_IDS, _IMAGE = 2, 3
#: the axes of images and videos
_SIDES = ("depth", HEIGHT, WIDTH)

Named = list[tuple[str, Varying]]


def named(
    tensors: Mapping[str, Tensor],
    classified: Classified,
    declared: Mapping[str, Varying],
    separate: Callable[[Varying], bool],
    takes_one: Callable[[Varying], bool],
) -> Named:
    """The groups that vary, each with a name; those that are most likely channels have none and are left out.

    ``declared``: groups that the user named. ``separate``: whether the rows of a group are independent of one another.
    ``takes_one``: whether one row is accepted, as of a batch.
    """
    return _Names(tensors, classified, declared, lambda group: takes_one(group) and separate(group), takes_one).run()


class _Names:
    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        classified: Classified,
        declared: Mapping[str, Varying],
        separate: Callable[[Varying], bool],
        takes_one: Callable[[Varying], bool],
    ) -> None:
        self._tensors, self._classified, self._separate, self._takes_one = tensors, classified, separate, takes_one
        self._names: Named = list(declared.items())

    def run(self) -> Named:
        self._batches()
        for name in sorted(self._tensors, key=self._order):
            self._input(name)
        return self._names

    def _batches(self) -> None:
        """Names the first group with independent rows, then the batches of inputs that do not share it (two towers)."""
        if not self._has(BATCH):
            candidates = [group for group in self._open() if min(axis for _, axis in group.members) <= 1]
            # tokens without attention are independent as well: the batch comes before them
            candidates.sort(key=lambda group: min(axis for _, axis in group.members))
            batch = next((group for group in candidates if self._separate(group)), None) or self._conventional()
            if batch is None:
                return
            self._names.append((BATCH, batch))
        for name in self._tensors:
            group = self._classified.of((name, 0))
            shares = any(
                batch.members and name in dict(batch.members) for label, batch in self._names if "batch" in label
            )
            if group is not None and not shares and self._is_open(group) and self._separate(group):
                self._names.append((f"{name}_{BATCH}", group))

    def _conventional(self) -> Varying | None:
        """The first axis of ids [B, T] or of values [B, ..., C], where no rows are independent.

        Rows may share a number, as the largest sum by which Nystrom attention scales; one image is [H, W, C].
        """
        for name, tensor in self._tensors.items():
            group, rank = self._classified.of((name, 0)), tensor.dim()
            if tensor.is_floating_point():
                has_batch = rank > _IMAGE or (rank == _IMAGE and tensor.shape[-1] > MOST_CHANNELS)
            else:
                has_batch = rank == _IDS
            if has_batch and group is not None and self._is_open(group) and self._takes_one(group):
                return group
        return None

    def _input(self, name: str) -> None:
        tensor, groups = self._tensors[name], [group for group in self._of(name) if self._is_open(group)]
        if not tensor.is_floating_point():
            for group in groups:
                self._sequence(name, group)
            return
        groups = self._without_channels(name, groups)
        if len(groups) == 1:
            samples = tensor.dim() - self._batched(name) == 1 and self._only_values(groups[0])
            samples = samples and not any(
                counts_tokens(other, values, groups[0].size) for other, values in self._tensors.items()
            )
            if samples:
                self._add(SAMPLES, name, groups[0])
            else:
                self._sequence(name, groups[0])
            return
        sides = groups[-len(_SIDES) :]
        for label, group in zip(_SIDES[len(_SIDES) - len(sides) :], sides, strict=True):
            self._add(label, name, group)

    def _without_channels(self, name: str, groups: list[Varying]) -> list[Varying]:
        """Where every axis varies: without the axes that are most likely channels, heads and the head size."""
        shape, batched = self._tensors[name].shape, self._batched(name)
        rank = len(shape) - batched
        if rank < 2 or len(groups) < rank:
            return groups
        if rank == 2:
            return groups[:1]
        lone = {other for other, _ in groups[0].members} == {name}
        return groups[1:] if lone and shape[batched] <= MOST_CHANNELS else groups[1:2]

    def _batched(self, name: str) -> int:
        """1 where the input has a batch axis."""
        return int(any("batch" in label and name in dict(group.members) for label, group in self._names))

    def _only_values(self, group: Varying) -> bool:
        return all(self._tensors[name].is_floating_point() for name, _ in group.members)

    def _sequence(self, name: str, group: Varying) -> None:
        label = next((label for label in (SEQUENCE, ENCODER_SEQUENCE) if not self._has(label)), SEQUENCE)
        self._add(label, name, group)

    def _add(self, label: str, name: str, group: Varying) -> None:
        """Adds a name, after the input's name where another group has it."""
        self._names.append((f"{name}_{label}" if self._has(label) else label, group))

    def _has(self, label: str) -> bool:
        return any(other == label for other, _ in self._names)

    def _open(self) -> list[Varying]:
        return [group for group in self._classified.varying if self._is_open(group)]

    def _is_open(self, group: Varying) -> bool:
        return all(group is not other for _, other in self._names)

    def _of(self, name: str) -> list[Varying]:
        """The groups of an input's axes, without repetition."""
        groups = [self._classified.of((name, axis)) for axis in range(self._tensors[name].dim())]
        return list({id(group): group for group in groups if group is not None}.values())

    def _order(self, name: str) -> tuple[bool, int]:
        """The order of naming: inputs that cross attention reads come last, values after ids."""

        def contains(words: tuple[str, ...], name: str) -> bool:
            rest = _INPUTS.sub("", name.lower())
            return any(word in rest for word in words)

        other = any(contains(_READING, input_name) for input_name in self._tensors)
        read = (other or contains(_READ, name)) and not contains(_READING, name)
        return read, int(self._tensors[name].is_floating_point() or self._is_of_pixels(name))

    def _is_of_pixels(self, name: str) -> bool:
        """Whether an input is a mask [B, H, W], with two axes of an image."""
        groups = [group for group in self._of(name) if self._is_open(group)]
        values = {other for other, tensor in self._tensors.items() if tensor.is_floating_point()}
        return len(groups) > 1 and all(values & {other for other, _ in group.members} for group in groups)
