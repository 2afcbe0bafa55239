"""A text from a sound, by an encoder and a decoder (Whisper)."""

from posexport.tasks.task import OF_TOKENS, PipelineTask, Task

TASK = Task(
    name="automatic-speech-recognition",
    what="logits of the next token, by a decoder that reads an encoder of audio",
    outputs={"logits": OF_TOKENS},
    pipelines=(PipelineTask("automatic-speech-recognition", "whisper_recognition:WhisperRecognition", "audio"),),
)
