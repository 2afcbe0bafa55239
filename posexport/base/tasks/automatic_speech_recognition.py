"""A text from a sound, by an encoder and a decoder (Whisper; Moonshine, arXiv:2410.15608)."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task

NAME = "automatic-speech-recognition"
TASK = Task(
    name=NAME,
    what="logits of the next token, by a decoder that reads an encoder of audio",
    outputs={"logits": OF_TOKENS},
    ends=("MoonshineForConditionalGeneration", "SpeechEncoderDecoderModel"),
    auto="AutoModelForSpeechSeq2Seq",
    pipelines=(
        PipelineTask(NAME, "whisper_recognition:WhisperRecognition", "audio", reads="input_features"),
        PipelineTask(NAME, "speech_to_text:SpeechToText", "audio", reads="input_values"),
    ),
)
