"""Long sounds in overlapping chunks, as transformers' pipeline cuts them: each is read with context on both sides."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError


@dataclass(frozen=True)
class Stride:
    """The length of a chunk, in samples or frames, and the context at both ends that is read and not returned."""

    length: int
    left: int
    right: int

    def over(self, samples: int) -> "Stride":
        """Counted in frames of that many samples each, rounded as transformers' ``rescale_stride`` does."""
        frames = round(self.length * (1 / samples))
        return Stride(frames, *(round(side / self.length * frames) for side in (self.left, self.right)))


@dataclass(frozen=True)
class ChunkLengths:
    """Samples of a chunk, and of the context at its ends."""

    chunk: int
    left: int
    right: int

    def cut(self, samples: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float32], Stride]]:
        """Chunks of samples [n]; the first has no context on the left, and the last none on the right."""
        for start in range(0, len(samples), self.chunk - self.left - self.right):
            chunk = samples[start : start + self.chunk]
            left, last = (self.left if start else 0), start + self.chunk >= len(samples)
            if len(chunk) > left:
                yield chunk, Stride(len(chunk), left, 0 if last else self.right)
            if last:
                return


def chunk_lengths(
    chunk_length_s: float, stride_length_s: float | Sequence[float] | None, sampling_rate: int, align_to: int = 1
) -> ChunkLengths:
    """The options of transformers' pipeline in samples, in multiples of ``align_to``, the samples of a frame.

    Args:
        chunk_length_s: seconds of a chunk, context included.
        stride_length_s: seconds of context on both sides or (left, right); None: a sixth of the chunk each.
        sampling_rate: samples of a second.
        align_to: samples of a frame.
    """
    if stride_length_s is None:
        stride_length_s = chunk_length_s / 6
    sides = [stride_length_s] * 2 if isinstance(stride_length_s, (int, float)) else [*stride_length_s]
    if len(sides) != 2 or min(sides) < 0 or chunk_length_s < 0:
        raise PosexportError(
            f"stride_length_s is {stride_length_s!r} and chunk_length_s {chunk_length_s!r}; give seconds, and of the "
            "stride one number or two, (left, right)"
        )
    chunk, left, right = (round(seconds * sampling_rate / align_to) * align_to for seconds in (chunk_length_s, *sides))
    if chunk <= left + right:
        raise PosexportError(
            f"chunk_length_s = {chunk_length_s} is not longer than both strides, {sides[0]} and {sides[1]} seconds; "
            "lengthen the chunk or shorten stride_length_s"
        )
    return ChunkLengths(chunk, left, right)
