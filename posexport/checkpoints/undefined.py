"""Classes that a type has in transformers, and not in posexport's definition of it (WavLMForSequenceClassification)."""

from posexport.checkpoints.families.family import Family
from posexport.checkpoints.opened import EMBEDDING_TASKS, Checkpoint
from posexport.system.extras import is_installed


def undefined(checkpoint: Checkpoint, family: Family) -> str | None:
    """A remark that transformers' class is converted, since ``family`` has no task for it; None if it has.

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
