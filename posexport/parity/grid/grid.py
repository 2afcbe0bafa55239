"""The points at which a model is proven. Imports no torch."""

from collections.abc import Sequence

from posexport.errors import PosexportError
from posexport.lowering.blocks import BLOCK
from posexport.parity.grid import cached, images, sized
from posexport.parity.grid.point import GridPoint
from posexport.parity.grid.text import Sequences
from posexport.sizes import samples
from posexport.spec import InputSpec, Limits


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
        return images.points(limits, lengths)
    sequences = Sequences(limits, inputs)
    if limits.proof_sizes and not sequences.any:
        return sized.alone(limits, lengths, sequences.batches)
    points = _of_sequences(limits, inputs, sequences, lengths, further)
    return sized.beside(limits, points) if limits.proof_sizes else points


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
    if limits.kv_cache:
        points += cached.in_calls(points)
    if any(spec.role == "positions" for spec in inputs):
        points += cached.numbered(points)
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
        points.append(cached.beyond(sequences.point(1, limit + 1, must_be_rejected=True), limit))
    return points


def switches(limits: Limits) -> list[int]:
    """Lengths up to and including which the graph computes in one way, ascending: a mistake may show on one side only.

    Lengths at which the encoding's formula changes, and the length from which attention is tiled over queries; in units
    of ``sequence_length`` (samples where convolutions make tokens of them).
    """
    return sorted({*limits.boundaries, samples(BLOCK + 1, limits.convolutions) - 1})
