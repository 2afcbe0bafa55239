"""Letters of a sound, by connectionist temporal classification."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task

TASK = Task(
    name="ctc",
    what="logits over labels at every frame",
    outputs={"logits": OF_TOKENS},
    ends=("ForCTC",),
    auto="AutoModelForCTC",
    pipelines=(PipelineTask("automatic-speech-recognition", "audio:AutomaticSpeechRecognition", "audio"),),
)
