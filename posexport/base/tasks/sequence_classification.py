"""Labels of a text or of a pair."""

from posexport.base.tasks.task import OF_BATCH, PipelineTask, Task

TASK = Task(
    name="sequence-classification",
    what="logits over labels for a text",
    outputs={"logits": OF_BATCH},
    ends=("ForSequenceClassification",),
    auto="AutoModelForSequenceClassification",
    pipelines=(
        PipelineTask("text-classification", "text_classification:TextClassification"),
        PipelineTask("zero-shot-classification", "zero_shot_classification:ZeroShotClassification"),
    ),
)
