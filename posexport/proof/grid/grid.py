"""The points at which a model is proven. Imports no torch.

Lengths and paddings of sequences (tokens, samples of sound, an encoder's states), sequences in several calls that each
continue the KV cache of the calls before, explicit position ids; other sizes are in `posexport.proof.grid.sizes`.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from posexport.base.sizes import multiple, samples
from posexport.base.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    SEQUENCE,
    InputSpec,
    Limits,
    Padding,
    masked_axis,
)
from posexport.errors import PosexportError
from posexport.graph.lowering.blocks import BLOCK
from posexport.proof.grid.point import BATCHES, GridPoint
from posexport.proof.grid.sizes import image_points, points_of_sizes, sized_points

#: one token, two, a prime, around a power of two (block sizes), the shortest with tiled attention, beyond 256 (bfloat16
#: holds integers up to there)
LENGTHS = (1, 2, 17, 63, 64, 65, BLOCK + 1, 257)


def lengths_of(limits: Limits) -> list[int]:
    """The default lengths, ascending; the model must accept them all."""
    trained, limit = limits.trained_length, limits.max_length
    if limits.proof_lengths:
        return sorted(limits.proof_lengths)
    lengths = {*LENGTHS, limits.min_length}
    several = samples(ALONE, limits.convolutions)
    for boundary in limits.boundaries:
        lengths |= {boundary + step for step in ((-1, 0, 1) if boundary <= several else (0, 1))}
    lengths |= {length for length in (trained, limit) if length is not None}
    if trained is not None and limits.beyond == "clip":
        lengths |= {trained + 1, 2 * trained}
    if trained is not None and limit is not None and limits.beyond == "interpolate":
        lengths |= {trained + 1, (trained + limit) // 2}
    step = limits.size_steps.get(SEQUENCE, 1)
    lengths = {multiple(length, step) for length in lengths}
    return sorted(n for n in lengths if limits.min_length <= n and (limit is None or n <= limit))


class Sequences:
    """The points of a model of sequences; ``limit`` and ``far_limit``: of the sequence and of the encoder's."""

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
            if SEQUENCE not in self._axes and self.limits.max_length == self.limits.min_length != length:
                raise PosexportError(
                    f"length {length} cannot be compared: the model takes {self.limits.max_length} tokens, no others"
                )
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
        """Every length within the limit: a batch of rows that are padded in all ways, one of them not at all.

        Rows are independent, so that one ragged batch has the paddings of several. Where all rows are padded, or none,
        graphs may take other branches: at the `_IN_FULL` lengths each padding has a point of its own, at the shorter in
        each batch size, at the longer of one row. Up to the shorter rows are also alone. Beyond `ALONE` tokens there
        is a single row.
        """
        within = [length for length in lengths if self.limit is None or length <= self.limit]
        alone = [self.point(1, length) for length in within if self.point(1, length).tokens > ALONE]
        within = within[: len(within) - len(alone)]
        least = [samples(tokens, self.limits.convolutions) for tokens in _IN_FULL] if within else []
        short, tiled = (next((n for n in within if n >= length), within[-1]) for length in least) if within else (0, 0)
        return [
            self.point(batch, length, padding)
            for length in within
            for batch, padding in self._ways(length, short, tiled)
        ] + alone

    def _ways(self, length: int, short: int, tiled: int) -> list[tuple[int, Padding]]:
        """Batch sizes and paddings of a length; where rows are padded differently, the last is all of it."""
        padded, ragged = self._is_padded(length), self.ragged(length)
        ways: list[tuple[int, Padding]] = [
            (batch, padding)
            for batch in self.batches
            for padding in ("none", *(self.limits.paddings if padded else ()))
            if batch > 1 or not padding.startswith("ragged")
        ]
        if length == short:
            return ways
        if length == tiled:
            return [(batch, padding) for batch, padding in ways if batch == 1 or padding == ragged]
        together = [(batch, padding) for batch, padding in ways if padding == (ragged if batch > 1 else "none")]
        return together if length < short else together[-1:]

    def _is_padded(self, length: int) -> bool:
        return self._masked and length > max(samples(1, self.limits.convolutions), self.limits.min_length)

    def ragged(self, length: int) -> Padding:
        """The padding of rows of different lengths, up to ``length``."""
        return (self.limits.ragged if self._is_padded(length) else None) or "none"

    def rejected(self, shortest: int) -> Iterator[GridPoint]:
        """Inputs outside the limits of every axis, which the length guard must reject."""
        if self.limit is not None:
            yield from (self.point(batch, self.limit + 1, must_be_rejected=True) for batch in self.batches)
            if self.limit > 1:
                yield self.point(1, 2 * self.limit, must_be_rejected=True)
        step = self.limits.size_steps.get(SEQUENCE, 1)
        if self.limits.min_length > step and self.any:
            yield self.point(1, self.limits.min_length - step, must_be_rejected=True)
        if step > 1 and self.any:
            yield self.point(1, multiple(self.limits.min_length, step) + 1, must_be_rejected=True)
        if self.far_limit is not None:
            yield GridPoint(batch=1, length=shortest, encoder_length=self.far_limit + 1, must_be_rejected=True)


def points_of_adapters(sequences: Sequences, points: Sequence[GridPoint], adapters: int) -> list[GridPoint]:
    """A batch with a row for each of ``adapters`` where no point has as many, of one short length."""
    if adapters <= max((point.batch for point in points), default=adapters):
        return []
    short = min(points, key=lambda point: (point.tokens < _IN_FULL[0], point.length))
    return [sequences.point(adapters, short.length, sequences.ragged(short.length))]


#: tokens above which a point has one row, without padding, in one call
ALONE = 2048
#: a length with short and one with long (tiled) attention
_IN_FULL = (17, BLOCK + 1)
#: decode steps after a prefill: enough to pass a length at which the formula changes
_STEPS = 3
#: tokens above which lowerings compute a call in tiles: one tiled call must continue a cache too
_TILE = 128


def points_in_calls(points: Sequence[GridPoint]) -> list[GridPoint]:
    """The same sequences, split in every way; of a length whose rows share a batch, that batch."""
    rows = max((point.batch for point in points), default=1)
    # where rows without padding are a point of their own
    several = {point.length for point in points if point.batch == rows and point.padding == "none"}
    return [
        msgspec.structs.replace(point, calls=calls)
        for point in points
        if (point.batch == rows or point.length in several) and point.tokens <= ALONE
        for calls in splits(point.length)
    ]


def splits(length: int) -> list[tuple[int, ...]]:
    """Prefill and decode steps; chunked prefill in three calls; a long chunk after a short one."""
    if length < 2:
        return []
    steps = min(_STEPS, length - 1)
    ways = [(length - steps, *[1] * steps)]
    chunk = -(-length // 3)
    if length > 3:
        ways.append((chunk, chunk, length - 2 * chunk))
    first = length // 8
    if chunk <= _TILE < length - first:
        ways.append((first, length - first))
    return [calls for calls in ways if min(calls) > 0]


#: new tokens at the end of a long context: a decode step, and a chunk that is tiled
_AT_END = (1, BLOCK + 1)
#: the end of a context that has none
_FAR = 8192


def with_ends(
    points: Sequence[GridPoint],
    limits: Limits,
    inputs: Sequence[InputSpec],
    fits: Callable[[GridPoint], bool],
) -> list[GridPoint]:
    """``points`` of a decoder, with `points_at_end` in place of whole sequences that cost too much."""
    if any(ENCODER_SEQUENCE in spec.axes for spec in inputs):
        return list(points)  # nobody knows how long the encoder's input would be
    short = [point for point in points if point.tokens <= ALONE or point.must_be_rejected]
    # other axes, such as images beside the text, have the sizes of a point of the grid
    sizes = next(({"sizes": point.sizes, "least_sizes": point.least_sizes} for point in points if point.sizes), {})
    return short + [msgspec.structs.replace(point, **sizes) for point in points_at_end(limits, fits)]


def points_at_end(limits: Limits, fits: Callable[[GridPoint], bool]) -> list[GridPoint]:
    """Decode steps and chunks at the longest lengths, and at the boundaries on the way, behind drawn caches.

    Keys and values are drawn because to compute them would take hours; a graph cannot know how they came about.
    Where a length does not fit memory, half of it may.
    """
    ends = {n for n in limits.boundaries if n > LENGTHS[-1]}
    ends |= {n for n in (limits.trained_length, limits.max_length) if n is not None and n > LENGTHS[-1]}
    if limits.max_length is None:
        ends.add(max(_FAR, *ends, 0))
    points: dict[GridPoint, None] = {}
    for end in sorted(ends):
        for new in _AT_END:
            while end > LENGTHS[-1]:
                point = GridPoint(batch=1, length=end, cached=end - new, least=limits.min_length)
                if fits(point):
                    points[point] = None
                    break
                end //= 2
    return list(points)


def points_with_ids(points: Sequence[GridPoint]) -> list[GridPoint]:
    """Unpadded batches with explicit position ids, in place of those counted by the mask."""
    whole = [point for point in points if point.batch > 1 and point.padding == "none"]
    return [msgspec.structs.replace(point, position_ids_given=True) for point in whole]


def beyond_cached(point: GridPoint, limit: int) -> GridPoint:
    """A decode step with a cache as long as the limit."""
    return msgspec.structs.replace(point, calls=(limit, 1))


def grid(
    limits: Limits,
    inputs: Sequence[InputSpec],
    *,
    lengths: Sequence[int] | None = None,
    further: Sequence[int] = (),
) -> list[GridPoint]:
    """The points, ordered by length; ``lengths`` replaces the default ones.

    ``further``: longer than the default ones, looked at alone and without padding. Lengths beyond the limit must be
    rejected, on every axis that the limit is about.

    Raises PosexportError for a length the model does not promise to accept.
    """
    if limits.proof_image_sizes:
        return image_points(limits, lengths)
    sequences = Sequences(limits, inputs)
    if limits.proof_sizes and not sequences.any:
        return sized_points(limits, lengths, sequences.batches)
    points = _of_sequences(limits, inputs, sequences, lengths, further)
    return points_of_sizes(limits, points) if limits.proof_sizes else points


def _of_sequences(
    limits: Limits,
    inputs: Sequence[InputSpec],
    sequences: Sequences,
    lengths: Sequence[int] | None,
    further: Sequence[int],
) -> list[GridPoint]:
    chosen = sequences.chosen(lengths)
    limit = sequences.limit
    points = sequences.accepted(chosen)
    if lengths is None and limit is None:
        points += [sequences.point(1, length) for length in further if length > max(chosen)]
    every = points_of_adapters(sequences, points, next((s.size or 0 for s in inputs if s.role == "adapters"), 0))
    if limits.kv_cache:
        points += points_in_calls(points)
        every += points_in_calls(every)
    points += every
    if any(spec.role == "positions" for spec in inputs):
        points += points_with_ids(points)
    if not points:
        raise PosexportError(
            f"none of the lengths {', '.join(map(str, chosen))} can be compared: the model takes at most {limit}; "
            f"give one of up to {limit} too"
        )
    if lengths is not None:
        too_long = [length for length in chosen if limit and length > limit]
        return points + [
            sequences.point(batch, n, must_be_rejected=True) for n in too_long for batch in sequences.batches
        ]
    points += sequences.rejected(chosen[0])
    if limit is not None and limits.kv_cache:
        points.append(beyond_cached(sequences.point(1, limit + 1, must_be_rejected=True), limit))
    return points


def switches(limits: Limits) -> list[int]:
    """Lengths up to and including which the graph computes in one way, ascending: a mistake may show on one side only.

    Lengths at which the encoding's formula changes, and the length from which attention is tiled over queries; in units
    of ``sequence_length`` (samples where convolutions make tokens of them).
    """
    return sorted({*limits.boundaries, samples(BLOCK + 1, limits.convolutions) - 1})
