"""Labels of an image."""

from posexport.tasks.task import OF_BATCH, PipelineTask, Task

TASK = Task(
    name="image-classification",
    what="logits over labels for an image",
    reads=("images",),
    outputs={"logits": OF_BATCH},
    varies=("batch",),
    ends=("ForImageClassification",),
    auto="AutoModelForImageClassification",
    pipelines=(PipelineTask("image-classification", "images:ImageClassification", "images"),),
)
