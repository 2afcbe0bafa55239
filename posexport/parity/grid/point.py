"""A point of the grid: one input, or one sequence in several calls. Imports no torch."""

import msgspec

from posexport.sizes import frames
from posexport.spec import Padding

PADDINGS: tuple[Padding, ...] = ("none", "right", "left", "ragged", "ragged-right", "few")


class GridPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the model.

    ``must_be_rejected``: by the length guard. ``encoder_length``: length of the sequence that is cross attended to.
    ``image``: height and width in pixels; ``length`` is then its number of patches. ``convolutions``: what makes tokens
    of ``length`` samples. ``least``: no row has fewer real tokens. ``sizes``: of axes of a user's module that are
    neither batch nor sequence. ``length_estimated``: there is no sequence, and ``length`` is about how many tokens
    ``sizes`` make.
    """

    batch: int
    length: int
    padding: Padding = "none"
    encoder_length: int | None = None
    image: tuple[int, int] | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    length_estimated: bool = False
    convolutions: tuple[tuple[int, int], ...] = ()
    least: int = 1
    #: lengths of the calls that make up the length, each with the cache of those before; none: one call
    calls: tuple[int, ...] = ()
    #: positions are given, instead of counted by the mask
    position_ids_given: bool = False
    must_be_rejected: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens attend to one another."""
        return frames(self.length, self.convolutions)

    @property
    def size(self) -> str:
        """The length, or the image's height and width; with sizes of other axes behind it, or these alone."""
        if self.image is not None:
            return f"{self.image[0]}x{self.image[1]}"
        others = "x".join(str(size) for _, size in self.sizes)
        if self.length_estimated:
            return others
        return f"{self.length} ({others})" if others else f"{self.length}"

    def __str__(self) -> str:
        if self.image is not None:
            return f"image {self.size}, batch {self.batch}"
        padding = "no padding" if self.padding == "none" else f"{self.padding} padding"
        encoder = "" if self.encoder_length is None else f", encoder length {self.encoder_length}"
        calls = f", in calls of {', '.join(map(str, self.calls))}" if self.calls else ""
        numbered = ", positions given" if self.position_ids_given else ""
        others = ", ".join(f"{axis} {size}" for axis, size in self.sizes)
        length = f"length {self.length}" + (f" ({others})" if others else "")
        return f"{others if self.length_estimated else length}, batch {self.batch}, {padding}{encoder}{calls}{numbered}"
