"""What a conversion may be told."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from posexport.errors import PosexportError
from posexport.recipe import CacheName, LayoutName
from posexport.sources.resolve import LoadOptions
from posexport.spec import Beyond
from posexport.suggest import check_choice
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.precisions import FP32
from posexport.targets.target import TARGETS

if TYPE_CHECKING:
    from posexport.nn.caching import Rotate
    from posexport.targets.target import TargetName

#: what an option may be, where it is one of few words
_CHOICES = {
    "target": TARGETS,
    "cache": ("dynamic", "static"),
    "rotate": ("at-write", "at-read"),
    "beyond": ("error", "clip", "interpolate"),
    "layout": get_args(LayoutName),
}


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What ``posexport convert`` may be told; the defaults are the right choice for most."""

    load: LoadOptions = field(default_factory=LoadOptions)
    opset: int | None = None
    max_length: int | None = None
    beyond: Beyond = "error"
    #: how a decoder keeps past tokens, and when it rotates keys
    cache: "CacheName" = "dynamic"
    rotate: "Rotate" = "at-write"
    #: whose files the directory looks like (`posexport.export.layouts`)
    layout: LayoutName = "bundle"
    #: ``cpu`` and ``cuda``: with operators that only ONNX Runtime has
    target: "TargetName" = "portable"
    lowering: str = "auto"
    inline: bool = False
    precision: PrecisionOptions = field(default_factory=PrecisionOptions)
    #: further precisions, for a layout whose directories hold several
    variants: tuple[PrecisionOptions, ...] = ()
    #: texts, one a line, that static scales of int8 activations are measured on, or GPTQ of int4
    calibrate: Path | None = None
    #: texts, one a line, on which a precision below float32 is compared with float32
    texts: Path | None = None
    #: a ``tokenizer.json`` for a source that brings none, or the tokenizer object of a transformers model
    tokenizer: Any = None
    #: that it is proven on; None: the one of the target where that loads, else the CPU
    provider: str | None = None
    lengths: Sequence[int] | None = None
    threads: int = 0
    verify: bool = True
    keep: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            check_choice(name, getattr(self, name), known)
        _check_precisions([self.precision, *self.variants], self.layout)
        precisions = (self.precision, *self.variants)
        if self.calibrate is not None and not any(each.reads_texts for each in precisions):
            raise PosexportError(
                f"--calibrate measures scales of int8 activations, got --precision {self.precision.name}"
                f"{' --weight-only' if self.precision.weight_only else ''}; give --precision int8, or --quantizer gptq "
                "with int4, or leave it out"
            )
        if self.calibrate is None and any(each.quantizer == "gptq" for each in precisions):
            raise PosexportError(
                "--quantizer gptq makes errors small on texts, got none; give --calibrate FILE with texts, one a line, "
                "or --quantizer hqq, which needs none"
            )
        if self.texts is not None and all(each.name == FP32.name for each in precisions):
            raise PosexportError(
                "--texts measures what a precision costs against float32, got --precision fp32; give another, such as "
                "int8, or leave --texts out"
            )


def _check_precisions(precisions: Sequence[PrecisionOptions], layout: LayoutName) -> None:
    """PosexportError where options contradict each other, or the layout holds one precision."""
    from posexport.export.layouts import LAYOUTS

    for each in precisions:
        each.check()
    names = [each.name for each in precisions]
    if len(set(names)) < len(names):
        raise PosexportError(f"each precision once, got --precision {' --precision '.join(names)}")
    several = [name for name, each in LAYOUTS.items() if each.names_precision]
    if len(names) > 1 and layout not in several:
        raise PosexportError(
            f"--precision {' and '.join(names)} in one directory need --layout {' or '.join(several)}, got --layout "
            f"{layout}; convert once for each precision otherwise"
        )
