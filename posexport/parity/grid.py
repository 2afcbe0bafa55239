"""The points at which a model is proven. Imports no torch."""

from collections.abc import Sequence

import msgspec

from posexport.errors import PosexportError
from posexport.spec import (
    ENCODER_SEQUENCE,
    HEIGHT,
    SEQUENCE,
    WIDTH,
    InputSpec,
    LengthContract,
    Padding,
    ProofPlan,
    frames,
    samples,
)

PADDINGS: tuple[Padding, ...] = ("none", "right", "left", "ragged", "ragged-right")
BATCHES = (1, 3)
#: single tokens after a prompt: enough to pass a length at which the formula changes
_STEPS = 3
#: tokens above which lowerings compute a call in tiles: one such call has to come behind a cache too
_TILE = 128
#: one token, two, a prime, around a power of two (block sizes), beyond 256 (bfloat16 holds integers up to there)
LENGTHS = (1, 2, 17, 63, 64, 65, 257)


#: what JSON calls fields of a point
POINT_NAMES = {"memory": "encoder_length", "numbered": "position_ids_given", "refusal": "must_be_rejected"}


class GridPoint(msgspec.Struct, frozen=True, kw_only=True, rename=POINT_NAMES):
    """One call of the model.

    ``refusal``: the length guard must refuse it. ``memory``: length of the sequence that is cross attended to.
    ``image``: height and width in pixels; ``length`` is then its number of patches. ``convolutions``: what makes tokens
    of ``length`` samples.
    """

    batch: int
    length: int
    padding: Padding = "none"
    memory: int | None = None
    image: tuple[int, int] | None = None
    convolutions: tuple[tuple[int, int], ...] = ()
    #: lengths of the calls that make up the length, each with the cache of those before; none: one call
    calls: tuple[int, ...] = ()
    #: positions are given, instead of counted by the mask
    numbered: bool = False
    refusal: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens attend to one another."""
        return frames(self.length, self.convolutions)

    @property
    def size(self) -> str:
        """The length, or the image's height and width."""
        return str(self.length) if self.image is None else f"{self.image[0]}x{self.image[1]}"

    def __str__(self) -> str:
        if self.image is not None:
            return f"image {self.size}, batch {self.batch}"
        padding = "no padding" if self.padding == "none" else f"{self.padding} padding"
        memory = "" if self.memory is None else f", encoder length {self.memory}"
        calls = f", in calls of {', '.join(map(str, self.calls))}" if self.calls else ""
        numbered = ", positions given" if self.numbered else ""
        return f"length {self.length}, batch {self.batch}, {padding}{memory}{calls}{numbered}"


def lengths_of(envelope: LengthContract, plan: ProofPlan) -> list[int]:
    """The default lengths, ascending, all of which the model must take."""
    trained, limit = envelope.trained, envelope.limit
    if plan.lengths:
        return sorted(plan.lengths)
    found = {*LENGTHS, envelope.minimum}
    found |= {b + step for b in envelope.boundaries for step in (-1, 0, 1)}
    found |= {length for length in (trained, limit) if length is not None}
    if trained is not None and envelope.beyond == "clip":
        found |= {trained + 1, 2 * trained}
    if trained is not None and limit is not None and envelope.beyond == "interpolate":
        found |= {trained + 1, (trained + limit) // 2}
    return sorted(n for n in found if envelope.minimum <= n and (limit is None or n <= limit))


def grid(
    envelope: LengthContract,
    inputs: Sequence[InputSpec],
    plan: ProofPlan | None = None,
    *,
    lengths: Sequence[int] | None = None,
    further: Sequence[int] = (),
) -> list[GridPoint]:
    """The points, ordered by length; ``lengths`` replaces the default ones.

    ``further``: longer than the default ones, looked at alone and without padding.

    Lengths beyond the limit must be refused, on every axis that the limit is about.
    Raises PosexportError for a length the model does not promise to take.
    """
    plan = plan or ProofPlan()
    if plan.images:
        return _images(envelope, plan, lengths)
    for length in lengths or ():
        if length < envelope.minimum:
            raise PosexportError(
                f"length {length} is below the model's minimum: give --length {envelope.minimum} or more"
            )
    axes = {axis for spec in inputs for axis in spec.axes}
    masked = any(spec.role == "mask" for spec in inputs)
    limits = {axis: envelope.limit for axis in envelope.limited_axes if axis in axes}
    limit, far_limit = limits.get(SEQUENCE), limits.get(ENCODER_SEQUENCE)
    least = samples(1, envelope.convolutions)

    def point(batch: int, length: int, padding: Padding = "none", refusal: bool = False) -> GridPoint:
        # another length than the queries', so that a graph cannot confuse the two axes
        far = length + 3 if batch == 1 else 5
        memory = None if ENCODER_SEQUENCE not in axes else far if far_limit is None else min(far, far_limit)
        return GridPoint(
            batch=batch,
            length=length,
            padding=padding,
            memory=memory,
            convolutions=tuple(envelope.convolutions),
            refusal=refusal,
        )

    chosen = lengths_of(envelope, plan) if lengths is None else sorted(set(lengths))
    if SEQUENCE not in axes:
        chosen = chosen[:1]
    points = [
        point(batch, length, padding)
        for length in chosen
        if limit is None or length <= limit
        for batch in BATCHES
        for padding in ("none", *envelope.paddings)
        if padding == "none" or (masked and length > least and (not padding.startswith("ragged") or batch > 1))
    ]
    longer = [length for length in further if lengths is None and limit is None and length > max(chosen)]
    points += [point(1, length) for length in longer]
    if envelope.cached:
        points += [msgspec.structs.replace(point, calls=calls) for point in points for calls in _calls(point.length)]
    if any(spec.role == "positions" for spec in inputs):
        whole = [point for point in points if point.batch > 1 and point.padding == "none"]
        points += [msgspec.structs.replace(point, numbered=True) for point in whole]
    if not points:
        raise PosexportError(
            f"none of the lengths {', '.join(map(str, chosen))} can be compared: the model takes at most {limit}; "
            f"give one of up to {limit} too"
        )
    if lengths is not None:
        return points + [point(batch, n, refusal=True) for n in chosen if limit and n > limit for batch in BATCHES]
    if limit is not None:
        points += [point(batch, limit + 1, refusal=True) for batch in BATCHES]
        points += [point(1, 2 * limit, refusal=True)] if limit > 1 else []
        if envelope.cached:
            points.append(msgspec.structs.replace(point(1, limit + 1, refusal=True), calls=(limit, 1)))
    if envelope.minimum > 1:
        points.append(point(1, envelope.minimum - 1, refusal=True))
    if far_limit is not None:
        points.append(GridPoint(batch=1, length=chosen[0], memory=far_limit + 1, refusal=True))
    return points


def _calls(length: int) -> list[tuple[int, ...]]:
    """A prompt and single tokens; a prompt in three parts; a long part behind a short one."""
    if length < 2:
        return []
    steps = min(_STEPS, length - 1)
    found = [(length - steps, *[1] * steps)]
    part = -(-length // 3)
    if length > 3:
        found.append((part, part, length - 2 * part))
    first = length // 8
    if part <= _TILE < length - first:
        found.append((first, length - first))
    return [calls for calls in found if min(calls) > 0]


def _images(envelope: LengthContract, plan: ProofPlan, lengths: Sequence[int] | None) -> list[GridPoint]:
    """Every size of image, alone and in a batch; ``lengths`` are sides of square ones."""
    least = [min(image[side] for image in plan.images) for side in (0, 1)]
    for side in lengths or ():
        if side < max(least):
            raise PosexportError(f"an image of {side}x{side} is below the model's minimum of {least[0]}x{least[1]}")
    sizes = plan.images if lengths is None else [(side, side) for side in lengths]
    patch = envelope.patch
    points = [
        GridPoint(batch=batch, length=max(1, height // patch) * max(1, width // patch), image=(height, width))
        for height, width in sizes
        for batch in BATCHES
    ]
    if lengths is None:
        points += [
            msgspec.structs.replace(points[0], image=image, refusal=True) for image in _too_small(envelope, plan)
        ]
    return sorted(points, key=lambda point: point.length)


def _too_small(envelope: LengthContract, plan: ProofPlan) -> list[tuple[int, int]]:
    """A proven image, cut to one pixel less than the smallest height or width."""
    height, width = plan.images[-1]
    least = envelope.smallest
    found = [(least[HEIGHT] - 1, width)] if least.get(HEIGHT, 1) > 1 else []
    return found + ([(height, least[WIDTH] - 1)] if least.get(WIDTH, 1) > 1 else [])
