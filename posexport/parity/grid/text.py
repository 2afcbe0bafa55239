"""The lengths and paddings of sequences: tokens, samples of sound, and what an encoder's states are read from."""

from collections.abc import Iterator, Sequence

from posexport.errors import PosexportError
from posexport.parity.grid.point import GridPoint
from posexport.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    SEQUENCE,
    InputSpec,
    LengthContract,
    Padding,
    ProofPlan,
    multiple,
    samples,
)

BATCHES = (1, 3)
#: one token, two, a prime, around a power of two (block sizes), beyond 256 (bfloat16 holds integers up to there)
LENGTHS = (1, 2, 17, 63, 64, 65, 257)


def lengths_of(contract: LengthContract, plan: ProofPlan) -> list[int]:
    """The default lengths, ascending, all of which the model must accept."""
    trained, limit = contract.trained_length, contract.max_length
    if plan.proof_lengths:
        return sorted(plan.proof_lengths)
    lengths = {*LENGTHS, contract.min_length}
    lengths |= {boundary + step for boundary in contract.boundaries for step in (-1, 0, 1)}
    lengths |= {length for length in (trained, limit) if length is not None}
    if trained is not None and contract.beyond == "clip":
        lengths |= {trained + 1, 2 * trained}
    if trained is not None and limit is not None and contract.beyond == "interpolate":
        lengths |= {trained + 1, (trained + limit) // 2}
    step = contract.size_steps.get(SEQUENCE, 1)
    lengths = {multiple(length, step) for length in lengths}
    return sorted(n for n in lengths if contract.min_length <= n and (limit is None or n <= limit))


class Sequences:
    """The points of a model whose inputs are sequences: ``limit`` and ``far_limit`` are those of its two axes."""

    def __init__(self, contract: LengthContract, inputs: Sequence[InputSpec]) -> None:
        self.contract = contract
        self._axes = {axis for spec in inputs for axis in spec.axes}
        #: whether any input has a sequence
        self.any = SEQUENCE in self._axes
        #: one row where no input has a batch
        self.batches = BATCHES if any(BATCH in spec.axes for spec in inputs) else BATCHES[:1]
        self._masked = any(spec.role == "mask" for spec in inputs)
        limits = {axis: contract.max_length for axis in contract.limited_axes if axis in self._axes}
        self.limit, self.far_limit = limits.get(SEQUENCE), limits.get(ENCODER_SEQUENCE)

    def point(self, batch: int, length: int, padding: Padding = "none", must_be_rejected: bool = False) -> GridPoint:
        """A point, the sequence that is cross attended to as long as fits it."""
        return GridPoint(
            batch=batch,
            length=length,
            padding=padding,
            encoder_length=self._encoder_length(batch, length),
            convolutions=tuple(self.contract.convolutions),
            must_be_rejected=must_be_rejected,
        )

    def _encoder_length(self, batch: int, length: int) -> int | None:
        """Another length than the queries', so that a graph cannot confuse the two axes."""
        if ENCODER_SEQUENCE not in self._axes:
            return None
        contract = self.contract
        far = max(length + 3 if batch == 1 else 5, contract.min_sizes.get(ENCODER_SEQUENCE, 1))
        far = multiple(far, contract.size_steps.get(ENCODER_SEQUENCE, 1))
        return far if self.far_limit is None else min(far, self.far_limit)

    def chosen(self, plan: ProofPlan, lengths: Sequence[int] | None) -> list[int]:
        """The lengths to check, ``lengths`` in place of the default ones; one where no sequence varies."""
        for length in lengths or ():
            if length < self.contract.min_length:
                raise PosexportError(
                    f"length {length} is below the model's minimum: give --length {self.contract.min_length} or more"
                )
            if length % self.contract.size_steps.get(SEQUENCE, 1):
                raise PosexportError(
                    f"length {length} cannot be compared: it must be a multiple of {self.contract.size_steps[SEQUENCE]}"
                )
        chosen = lengths_of(self.contract, plan) if lengths is None else sorted(set(lengths))
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
        if self._masked and length > samples(1, self.contract.convolutions):
            for padding in self.contract.paddings:
                if batch > 1 or not padding.startswith("ragged"):
                    yield padding

    def rejected(self, shortest: int) -> Iterator[GridPoint]:
        """Inputs outside the limits of every axis, which the length guard must reject."""
        if self.limit is not None:
            yield from (self.point(batch, self.limit + 1, must_be_rejected=True) for batch in self.batches)
            if self.limit > 1:
                yield self.point(1, 2 * self.limit, must_be_rejected=True)
        step = self.contract.size_steps.get(SEQUENCE, 1)
        if self.contract.min_length > step:
            yield self.point(1, self.contract.min_length - step, must_be_rejected=True)
        if step > 1 and self.any:
            yield self.point(1, self.contract.min_length + 1, must_be_rejected=True)
        if self.far_limit is not None:
            yield GridPoint(batch=1, length=shortest, encoder_length=self.far_limit + 1, must_be_rejected=True)
