"""Labels of a sound."""

from posexport.base.tasks.task import OF_BATCH, PipelineTask, Task

TASK = Task(
    name="audio-classification",
    what="logits over labels of a whole sound",
    outputs={"logits": OF_BATCH},
    # other classes have names of text classifiers
    ends=("ForAudioClassification",),
    auto="AutoModelForAudioClassification",
    pipelines=(PipelineTask("audio-classification", "audio:AudioClassification", "audio"),),
)
