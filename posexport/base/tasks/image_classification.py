"""Labels of an image."""

from posexport.base.tasks.task import OF_BATCH, PipelineTask, Task

TASK = Task(
    name="image-classification",
    what="logits over labels for an image",
    outputs={"logits": OF_BATCH},
    ends=("ForImageClassification",),
    auto="AutoModelForImageClassification",
    pipelines=(PipelineTask("image-classification", "images:ImageClassification", "images"),),
)
