"""What the dry run converts, and how it calls that: the most telling first."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from worker import Size

from posexport.base.targets.precisions import FP32, PRECISIONS
from posexport.errors import PosexportError
from posexport.graph.lowering.filled_slots import FilledSlots
from posexport.sources import builtin

GOLDEN = Path("tests/golden")
#: compute capability -> the card that the stand-in is then
CARDS = {80: "A100", 90: "H100"}
LENGTHS = (1, 17, 128, 512, 513, 2048)
#: of built-in models; heads of 64 channels, which every kernel of attention takes
SIZES = ("hidden=256", "heads=4", "feedforward=512", "vocab=101")
#: more than any call has
POSITIONS = "max_positions=4096"
#: encodings that are run in every precision before the others are
TELLING = ("nope", "rope", "relative-key", "t5", "alibi", "deberta")
#: the last word of a case with ``--unpad``, and the models of these
UNPADDED, UNPADS = "unpadded", ("encoder-rope", "encoder-t5", "decoder-rope")
#: encodings of decoders that attend to a static KV cache without a bias, where a branch says that causal order suffices
_UNBIASED = ("nope", "rope", "absolute")
#: kinds of models that share their encodings with encoders: those of these are run
_OTHER_KINDS = ("encoder-decoder-", "audio-")


class Case(msgspec.Struct, frozen=True, order=True):
    """A conversion for CUDA. ``name``: of a built-in model or of a golden checkpoint; ``unpad``: with ``--unpad``."""

    name: str
    precision: str
    cache: str = "dynamic"
    lowering: str = "auto"
    unpad: bool = False

    @property
    def key(self) -> str:
        cache = [] if self.cache == "dynamic" else [f"{self.cache} cache"]
        lowering = [] if self.lowering == "auto" else [self.lowering]
        return " ".join([self.name, self.precision, *cache, *lowering, *[UNPADDED] * self.unpad])

    @property
    def golden(self) -> bool:
        return not self.name.startswith(tuple(builtin.models()))

    @property
    def decodes(self) -> bool:
        return self.name.startswith("decoder-")

    def source(self) -> str:
        return str(GOLDEN / self.name) if self.golden else self.name

    def settings(self, layers: int) -> tuple[str, ...]:
        """Of a built-in model; a table has a row for every position of the calls."""
        if self.golden:
            return ()
        known = builtin.models()[self.name][0].config.settings()
        given = tuple(each for each in (f"layers={layers}", *SIZES) if each.partition("=")[0] in known)
        if not self.name.startswith(("encoder-", "decoder-", "audio-")):
            return tuple(each for each in given if each.startswith("layers="))
        try:
            builtin.builtin_source(self.name, task=None, settings_given=(*given, POSITIONS))
        except PosexportError:
            return given
        return (*given, POSITIONS)

    def calls(self) -> dict[str, Size]:
        """By name. A golden checkpoint takes fewer tokens, and an image has its own size."""
        if self.golden or self.name.startswith("vision-"):
            sizes = {"default": Size()}
            if self.cache == "static" or "forcausallm" in self.name:
                sizes["step"] = Size(past=9)
            return sizes
        capacity = 4096 if self.cache == "static" else 0
        sizes = {f"length {n}": Size(length=n, capacity=capacity) for n in LENGTHS}
        if self.decodes:
            for past in (127, 512, 2047):
                sizes[f"step behind {past}"] = Size(length=1, past=past, capacity=capacity)
            sizes["chunk of 17 behind 495"] = Size(length=17, past=495, capacity=capacity)
            if self.cache == "static":
                sizes["step behind 1000 of 1024"] = Size(length=1, past=1000, capacity=1024)
        return sizes

    def captured(self) -> list[str]:
        """The calls that are tried as a CUDA graph: those whose shapes come again."""
        if self.decodes:
            return ["step behind 512"] if self.cache == "static" else []
        return ["length 128"] if "length 128" in self.calls() else ["default"]

    @property
    def other_layers(self) -> int:
        """Layers of the model beside that of two, to count what one layer adds.

        A single layer behind a static KV cache has no bias to share: its own is computed in a branch, whose sizes a dry
        run does not know.
        """
        return 3 if self.cache == "static" else 1

    def layered(self) -> str | None:
        """The call by which kernels of a layer are counted: as many as one more layer adds."""
        if self.golden or "layers" not in builtin.models()[self.name][0].config.settings():
            return None
        return "step behind 512" if self.decodes else next(n for n in ("length 128", "default") if n in self.calls())


def cases() -> Iterator[Case]:
    """All, in the order in which they are run."""
    names = list(builtin.models())
    encoders = [n for n in names if n.startswith("encoder-") and not n.startswith("encoder-decoder-")]
    decoders = [n for n in names if n.startswith("decoder-")]
    others = [n for n in names if n not in {*encoders, *decoders}]
    ours = [n for n in others if not n.startswith(_OTHER_KINDS) or n.endswith(tuple(f"r-{t}" for t in TELLING))]
    ours += [f"audio-{encoding}" for encoding in ("nope", "absolute", "rope", "conformer", "transformer-xl")]
    golden = sorted(path.name for path in GOLDEN.iterdir() if (path / "config.json").is_file())
    first = [n for i, n in enumerate(golden) if i == 0 or n.partition("-")[0] != golden[i - 1].partition("-")[0]]

    def every(chosen: list[str], precision: str) -> Iterator[Case]:
        for name in chosen:
            yield Case(name, precision)
            if name.startswith("decoder-"):
                yield Case(name, precision, "static")
                if precision == "fp16" and name.removeprefix("decoder-") in _UNBIASED:
                    yield Case(name, precision, "static", FilledSlots.name)

    found = [Case(name, "fp16", unpad=True) for name in UNPADS]
    found += list(every(encoders, "fp16")) + list(every(decoders, "fp16")) + list(every(ours, "fp16"))
    telling = [f"{kind}-{encoding}" for kind in ("encoder", "decoder") for encoding in TELLING]
    rest = [name for name in PRECISIONS if name != "fp16"]
    found += [case for precision in rest for case in every(telling, precision)]
    found += list(every(first, "fp16")) + list(every(first, FP32.name))
    found += [case for precision in rest for case in every([*encoders, *decoders, *ours], precision)]
    yield from dict.fromkeys(found)
