"""The lengths and paddings of sequences: tokens, samples of sound, and what an encoder's states are read from."""

from collections.abc import Iterator, Sequence

from posexport.errors import PosexportError
from posexport.parity.grid.point import GridPoint
from posexport.sizes import multiple, samples
from posexport.spec import BATCH, ENCODER_SEQUENCE, SEQUENCE, InputSpec, Limits, Padding, masked_axis

BATCHES = (1, 3)
#: one token, two, a prime, around a power of two (block sizes), beyond 256 (bfloat16 holds integers up to there)
LENGTHS = (1, 2, 17, 63, 64, 65, 257)


def lengths_of(limits: Limits) -> list[int]:
    """The default lengths, ascending, all of which the model must accept."""
    trained, limit = limits.trained_length, limits.max_length
    if limits.proof_lengths:
        return sorted(limits.proof_lengths)
    lengths = {*LENGTHS, limits.min_length}
    lengths |= {boundary + step for boundary in limits.boundaries for step in (-1, 0, 1)}
    lengths |= {length for length in (trained, limit) if length is not None}
    if trained is not None and limits.beyond == "clip":
        lengths |= {trained + 1, 2 * trained}
    if trained is not None and limit is not None and limits.beyond == "interpolate":
        lengths |= {trained + 1, (trained + limit) // 2}
    step = limits.size_steps.get(SEQUENCE, 1)
    lengths = {multiple(length, step) for length in lengths}
    return sorted(n for n in lengths if limits.min_length <= n and (limit is None or n <= limit))


class Sequences:
    """The points of a model whose inputs are sequences: ``limit`` and ``far_limit`` are those of its two axes."""

    def __init__(self, limits: Limits, inputs: Sequence[InputSpec]) -> None:
        self.limits = limits
        self._axes = {axis for spec in inputs for axis in spec.axes}
        #: whether any input has a sequence
        self.any = SEQUENCE in self._axes
        #: one row where no input has a batch
        self.batches = BATCHES if any(BATCH in spec.axes for spec in inputs) else BATCHES[:1]
        self._masked = any(masked_axis(spec) is not None for spec in inputs)
        per_axis = {axis: limits.max_length for axis in limits.limited_axes if axis in self._axes}
        self.limit, self.far_limit = per_axis.get(SEQUENCE), per_axis.get(ENCODER_SEQUENCE)

    def point(self, batch: int, length: int, padding: Padding = "none", must_be_rejected: bool = False) -> GridPoint:
        """A point, the sequence that is cross attended to as long as fits it."""
        return GridPoint(
            batch=batch,
            length=length,
            padding=padding,
            encoder_length=self._encoder_length(batch, length),
            convolutions=tuple(self.limits.convolutions),
            least=self.limits.min_length,
            must_be_rejected=must_be_rejected,
        )

    def _encoder_length(self, batch: int, length: int) -> int | None:
        """Another length than the queries', so that a graph cannot confuse the two axes."""
        if ENCODER_SEQUENCE not in self._axes:
            return None
        limits = self.limits
        far = max(length + 3 if batch == 1 else 5, limits.min_sizes.get(ENCODER_SEQUENCE, 1))
        far = multiple(far, limits.size_steps.get(ENCODER_SEQUENCE, 1))
        return far if self.far_limit is None else min(far, self.far_limit)

    def chosen(self, lengths: Sequence[int] | None) -> list[int]:
        """The lengths to check, ``lengths`` in place of the default ones; one where no sequence varies."""
        for length in lengths or ():
            if length < self.limits.min_length:
                raise PosexportError(
                    f"length {length} is below the model's minimum: give --length {self.limits.min_length} or more"
                )
            if length % self.limits.size_steps.get(SEQUENCE, 1):
                raise PosexportError(
                    f"length {length} cannot be compared: it must be a multiple of {self.limits.size_steps[SEQUENCE]}"
                )
        chosen = lengths_of(self.limits) if lengths is None else sorted(set(lengths))
        return chosen if SEQUENCE in self._axes else chosen[:1]

    def accepted(self, lengths: Sequence[int]) -> list[GridPoint]:
        """Every length within the limit, in every batch size and padding."""
        within = [length for length in lengths if self.limit is None or length <= self.limit]
        return [
            self.point(batch, length, padding)
            for length in within
            for batch in self.batches
            for padding in self._paddings(batch, length)
        ]

    def _paddings(self, batch: int, length: int) -> Iterator[Padding]:
        yield "none"
        if self._masked and length > max(samples(1, self.limits.convolutions), self.limits.min_length):
            for padding in self.limits.paddings:
                if batch > 1 or not padding.startswith("ragged"):
                    yield padding

    def rejected(self, shortest: int) -> Iterator[GridPoint]:
        """Inputs outside the limits of every axis, which the length guard must reject."""
        if self.limit is not None:
            yield from (self.point(batch, self.limit + 1, must_be_rejected=True) for batch in self.batches)
            if self.limit > 1:
                yield self.point(1, 2 * self.limit, must_be_rejected=True)
        step = self.limits.size_steps.get(SEQUENCE, 1)
        if self.limits.min_length > step:
            yield self.point(1, self.limits.min_length - step, must_be_rejected=True)
        if step > 1 and self.any:
            yield self.point(1, self.limits.min_length + 1, must_be_rejected=True)
        if self.far_limit is not None:
            yield GridPoint(batch=1, length=shortest, encoder_length=self.far_limit + 1, must_be_rejected=True)
