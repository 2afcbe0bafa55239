"""Labels of texts that the caller names (GLiClass, arXiv:2508.07662)."""

from posexport.base.spec import BATCH, LABELS
from posexport.base.tasks.task import PipelineTask, Task

TASK = Task(
    name="zero-shot-classification",
    what="how well a text fits labels that are written beside it",
    outputs={"logits": (BATCH, LABELS)},
    pipelines=(PipelineTask("zero-shot-classification", "labels_beside_text:LabelsBesideText"),),
)
