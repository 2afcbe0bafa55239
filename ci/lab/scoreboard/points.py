"""The points at which a file is judged: sizes, padding, and the calls of a decoder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci.lab.scoreboard.samples import Size

#: cached decode steps after a prompt
STEPS = 5


@dataclass(frozen=True)
class Point:
    """A sample, in calls that end at lengths of it (a prompt, then steps); of an encoder-decoder, of its decoder."""

    size: Size
    calls: tuple[int, ...] = ()
    #: tokens of the decoder of an encoder-decoder
    decoder: int = 0

    def described(self, modality: str) -> str:
        """The point as a report names it."""
        steps = f", prompt of {self.calls[0]} and {len(self.calls) - 1} cached steps" if len(self.calls) > 1 else ""
        decoder = f", {self.decoder} tokens of the decoder" if self.decoder and not steps else ""
        return f"{self.size.described(modality)}{decoder}{steps}"


def _steps(prompt: int) -> tuple[int, ...]:
    return tuple(range(prompt, prompt + STEPS + 1))


def rows(longest: int) -> list[Point]:
    """Points of a text model without KV cache."""
    sizes = [Size(1, 1), Size(1, 7), Size(3, 7), Size(2, 23), Size(1, longest)]
    padded = [Size(3, 11, rows=(11, 6, 1), side=side) for side in ("right", "left")]
    return [Point(size, (size.tokens,)) for size in (*sizes, *padded) if size.tokens <= longest]


def decoder(longest: int) -> list[Point]:
    """A causal model: prompts in one call, then prompts with cached decode steps."""
    stepped = [(Size(1, 7 + STEPS), 7), (Size(2, 1 + STEPS), 1), (Size(1, longest), longest - STEPS)]
    left = Size(3, 11 + STEPS, rows=(11 + STEPS, 6 + STEPS, 1 + STEPS), side="left")
    return [*rows(longest), *(Point(size, _steps(prompt)) for size, prompt in (*stepped, (left, 11)))]


def seq2seq(longest: int) -> list[Point]:
    """An encoder-decoder: texts of several lengths, with the decoder's prompt in one call and then in steps."""
    sizes = [(Size(1, 1), 1), (Size(1, 7), 4), (Size(3, 7), 9), (Size(2, 23), 3), (Size(1, longest), longest)]
    points = [Point(size, (count,), count) for size, count in sizes]
    stepped = [(Size(1, 7), 1), (Size(2, 9), 4)]
    stepped += [(Size(3, 11, rows=(11, 6, 1), side=side), 3) for side in ("right", "left")]
    return points + [Point(size, _steps(prompt), prompt + STEPS) for size, prompt in stepped]


def captions(size: Size, longest: int) -> list[Point]:
    """A decoder of an image or a sound of one size: prompts in one call, then in steps."""
    sizes = [(1, 1), (1, 4), (3, 9), (1, longest)]
    points = [Point(replace(size, batch=batch), (count,), count) for batch, count in sizes]
    stepped = [(1, 1), (2, 4), (1, longest - STEPS)]
    return points + [Point(replace(size, batch=batch), _steps(prompt), prompt + STEPS) for batch, prompt in stepped]


def images(native: tuple[int, int]) -> list[Point]:
    """The size of the configuration, and others where the model takes them."""
    height, width = native
    sizes = [native, (2 * height, 2 * width), (2 * height, 3 * width), (height + 32, 2 * width + 32)]
    return [Point(Size(1, pixels=native)), *(Point(Size(3, pixels=pixels)) for pixels in sizes)]


def sounds(lengths: Sequence[int] = (400, 640, 1237)) -> list[Point]:
    """Waveforms or spectrograms of several lengths, without padding."""
    return [Point(Size(batch, sound=length)) for batch, length in zip((1, 3, 2), lengths, strict=True)]
