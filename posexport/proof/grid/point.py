"""A point at which a model is proven, and the memory that it needs. Imports no torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from posexport.base.sizes import frames
from posexport.base.spec import BATCH, CAPACITY, ENCODER_SEQUENCE, SEQUENCE, TOKENS, TOTAL, OutputSpec, Padding
from posexport.base.system.machine import available as available
from posexport.base.system.machine import readable as readable

#: rows of a batch
BATCHES = (1, 3)
PADDINGS: tuple[Padding, ...] = ("none", "right", "left", "ragged", "ragged-right", "few")


class GridPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the model.

    ``must_be_rejected``: by the length guard. ``encoder_length``: length of the sequence that is cross attended to.
    ``image``: height and width in pixels; ``length`` is then its number of patches. ``convolutions``: what makes tokens
    of ``length`` samples. ``least``: no row has fewer real tokens. ``sizes``: of axes of a user's module that are
    neither batch nor sequence, ``least_sizes``: no row has less real content along these axes, ``sound_tokens``: about
    how many tokens an encoder makes of samples among them. ``length_estimated``: there is no sequence, and ``length``
    is about how many tokens ``sizes`` make.
    """

    batch: int
    length: int
    padding: Padding = "none"
    encoder_length: int | None = None
    image: tuple[int, int] | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    least_sizes: tuple[tuple[str, int], ...] = ()
    sound_tokens: int = 0
    length_estimated: bool = False
    convolutions: tuple[tuple[int, int], ...] = ()
    least: int = 1
    #: lengths of the calls that make up the length, each with the cache of those before; none: one call
    calls: tuple[int, ...] = ()
    #: tokens at the start with keys and values that are drawn, not computed: decode steps at the end of a long context
    cached: int = 0
    #: with explicit position ids, in place of those counted by the mask
    position_ids_given: bool = False
    must_be_rejected: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens a call reads."""
        return frames(self.length, self.convolutions) - self.cached

    @property
    def size(self) -> str:
        """The length, or the image's height and width, then sizes of other axes, if any."""
        if self.image is not None:
            return f"{self.image[0]}x{self.image[1]}"
        sizes = "x".join(str(size) for _, size in self.sizes)
        if self.length_estimated:
            return sizes
        return f"{self.length} ({sizes})" if sizes else f"{self.length}"

    def __str__(self) -> str:
        if self.image is not None:
            return f"image {self.size}, batch {self.batch}"
        padding = "no padding" if self.padding == "none" else f"{self.padding} padding"
        encoder = "" if self.encoder_length is None else f", encoder length {self.encoder_length}"
        calls = f", in calls of {', '.join(map(str, self.calls))}" if self.calls else ""
        calls += f", {self.cached} of them cached" if self.cached else ""
        numbered = ", positions given" if self.position_ids_given else ""
        sizes = ", ".join(f"{axis} {size}" for axis, size in self.sizes)
        length = f"length {self.length}" + (f" ({sizes})" if sizes else "")
        return f"{sizes if self.length_estimated else length}, batch {self.batch}, {padding}{encoder}{calls}{numbered}"


#: the part of the free memory that a point may take
SHARE = 0.8
#: score-shaped float64 arrays in memory together: q k^T, the term, their sum, the probabilities
_SCORES = 4
#: bytes of a call in float64, and of what it is compared with, for each of one in float32, where that is known
_WIDER = 2.5
#: each output lives in float64, in PyTorch's and in ONNX Runtime's float32, and once more while one is made
_OUTPUTS = 2.5


#: bytes that a point beyond the default lengths may need; of a user's module, which may hold several more tensors; and
#: one of its several rows
_FURTHER, FURTHER_OF_MODULES, _ROWS_OF_MODULES = 4 << 30, 1 << 30, 1 << 28


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the points of a proof may take.

    Attributes:
        outputs: of the model.
        heads: of attention, the most of any layer, whose scores are in memory at once; 1 where attention is tiled.
        limit: bytes; None: most of the free memory.
        easily: bytes that are little.
        call_bytes: see `posexport.sources.source.Model`.
    """

    outputs: Sequence[OutputSpec]
    heads: int = 16
    limit: int | None = None
    easily: int = _FURTHER
    call_bytes: Callable[[Mapping[str, int]], int | None] | None = None

    def room(self) -> int:
        """The bytes that a point may take."""
        return int(available() * SHARE) if self.limit is None else self.limit

    def at_most(self, point: GridPoint) -> int:
        """The bytes that a point needs at most, by its length."""
        return needed_bytes(point, self.outputs, self.heads)

    def needed(self, point: GridPoint, room: int) -> int:
        """About the bytes that a point needs; where that seems more than ``room``, by what a call there makes."""
        need = self.at_most(point)
        measured = self.measured(point) if need > room else None
        return need if measured is None else min(need, measured)

    def measured(self, point: GridPoint) -> int | None:
        """About the bytes that a point needs, by what a call there makes; None where that is not known."""
        held = self.held(point)
        return None if held is None else int(_WIDER * held)

    def held(self, point: GridPoint) -> int | None:
        """The bytes of what one call in float32 makes; None where that is not known."""
        if self.call_bytes is None or point.calls or point.cached or point.image is not None:
            return None
        sizes = {BATCH: point.batch, SEQUENCE: point.length, ENCODER_SEQUENCE: point.encoder_length or 1}
        return self.call_bytes({**sizes, **dict(point.sizes)})

    def of_call(self, point: GridPoint) -> int:
        """About the bytes that one call of a graph takes: what the definition holds where that is known."""
        held, need = self.held(point), self.at_most(point)
        # features, and attention that is not over tokens, are not in the length
        return need if held is None else max(held, min(need, int(_WIDER * held)))

    def fits(self, point: GridPoint) -> bool:
        """Whether there is memory for a point now."""
        return self.needed(point, self.room()) <= self.room()

    def fits_easily(self, point: GridPoint) -> bool:
        """Whether a point beyond the default lengths takes little of the memory."""
        room = min(self.easily, self.room())
        return self.at_most(point) <= room and (self.measured(point) or 0) <= room

    def with_few_rows(self, points: Sequence[GridPoint]) -> list[GridPoint]:
        """``points``, in place of each of several rows that needs much memory the same one of one row.

        The smallest keep their rows.
        """
        few, fit = dict[GridPoint, GridPoint](), False
        several = [p for p in points if p.batch > 1 and not (p.must_be_rejected or p.calls or p.cached)]
        smallest = min(map(_size, several), default=0)
        for point in sorted(several, key=_size, reverse=True):
            fit = fit or _size(point) == smallest or (self.measured(point) or 0) <= _ROWS_OF_MODULES
            if not fit:
                few[point] = msgspec.structs.replace(point, batch=1, padding="none")
        # the truth of several calls is one call
        alone = ((point, few.get(msgspec.structs.replace(point, calls=()))) for point in points)
        return list(
            dict.fromkeys(p if one is None else msgspec.structs.replace(one, calls=p.calls) for p, one in alone)
        )

    def further(self, lengths: Sequence[int]) -> list[int]:
        """Of ``lengths`` beyond the default ones 1024 and the longest, as far as they fit easily."""
        fits = (
            length for length in sorted(lengths, reverse=True) if self.fits_easily(GridPoint(batch=1, length=length))
        )
        longest = next(fits, 0)
        return sorted({length for length in lengths if length == 1024 <= longest or length == longest})

    def too_large(self, points: Sequence[GridPoint]) -> dict[GridPoint, str]:
        """The points for which there is no memory, with the reason."""
        room = self.room()
        needs = {point: self.needed(point, room) for point in points}
        return {
            point: f"needs about {readable(need)} of memory, {readable(room)} may be taken"
            for point, need in needs.items()
            if need > room
        }


def _size(point: GridPoint) -> int:
    return point.batch * point.length * math.prod(size for _, size in point.sizes)


def needed_bytes(point: GridPoint, outputs: Sequence[OutputSpec], heads: int) -> int:
    """A rough upper bound, in bytes, of one point's activations."""
    keys = max(point.tokens + point.cached, point.encoder_length or 0)
    scores = _SCORES * 8 * point.batch * heads * max(point.tokens * keys, point.sound_tokens**2)
    widths = [axis for spec in outputs for axis in spec.axes[-1:] if isinstance(axis, int)]
    # caches that are drawn are inputs too
    caches = [spec.axes for spec in outputs if point.cached and {TOTAL, CAPACITY} & {*spec.axes}]
    drawn = sum(math.prod(axis for axis in axes if isinstance(axis, int)) for axes in caches) * point.cached
    # probabilities of attention
    pairs = [spec.axes for spec in outputs if sum(axis in TOKENS for axis in spec.axes) > 1]
    heads_of_pairs = sum(math.prod(axis for axis in axes if isinstance(axis, int)) for axes in pairs)
    elements = point.tokens * (sum(widths) + keys * heads_of_pairs) + 2 * drawn
    return int(scores + _OUTPUTS * 8 * point.batch * elements)
