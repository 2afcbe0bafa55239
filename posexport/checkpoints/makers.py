"""What makes a model of an opened checkpoint: posexport's definition of its type, or another library's class."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posexport.checkpoints.opened import Checkpoint
from posexport.registry import Registry
from posexport.sources.source import Model
from posexport.spec import SourceKind

DEFINED, TRANSFORMERS = "defined", "transformers"


@dataclass(frozen=True)
class Maker:
    """``make`` returns the model with the checkpoint's weights, adapter and head, and its facts.

    ``kind`` is the `Source.kind` of its sources. ``make`` raises PosexportError where the checkpoint does not fit.
    """

    kind: SourceKind
    make: Callable[[Checkpoint], Model]


MAKERS: Registry[Any] = Registry(
    "makers",
    Maker,
    {DEFINED: "posexport.checkpoints.defined:MAKER", TRANSFORMERS: "posexport.through.checkpoint:MAKER"},
)
