"""What makes a model of an opened checkpoint: posexport's definition of its type, or another library's class."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posexport.base.registry import Registry
from posexport.base.spec import SourceKind
from posexport.base.system.extras import is_installed
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.opened import EMBEDDING_TASKS, Checkpoint
from posexport.sources.source import Model

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
    {
        DEFINED: "posexport.checkpoints.defined:MAKER",
        TRANSFORMERS: "posexport.through.checkpoint:MAKER",
        # of types of other libraries, by the type
        "gliner": "posexport.folders.gliner:MAKER",
        "GLiClass": "posexport.folders.gliclass:MAKER",
        "chronos_bolt": "posexport.folders.chronos_bolt:MAKER",
        "model2vec": "posexport.checkpoints.model2vec:MAKER",
    },
)


def undefined(checkpoint: Checkpoint, family: Family) -> str | None:
    """A remark that transformers' class is converted, since ``family`` has no task for it (WavLMForXVector); else None.

    None also where only the definition can name the fault: custom code, another head on the model, a family with
    advice for its other classes, and no transformers.
    """
    config, architecture = checkpoint.config, checkpoint.config.architecture()
    if architecture is None or family.task_of(architecture) is not None or family.advice:
        return None
    if checkpoint.task in (*EMBEDDING_TASKS, *family.all_tasks) or checkpoint.pooling or config.values.get("auto_map"):
        return None
    if not is_installed("transformers"):
        return None
    tasks = ", ".join(family.all_tasks)
    return f"{architecture} is converted through transformers: posexport defines {family.model_type} for {tasks}"
