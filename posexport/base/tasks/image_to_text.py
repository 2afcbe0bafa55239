"""The text in an image (TrOCR, arXiv:2109.10282; Donut, arXiv:2111.15664), or about it (BLIP, arXiv:2201.12086)."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task

TASK = Task(
    name="image-to-text",
    what="an image's states, and logits of the next token by a decoder that reads them",
    outputs={"logits": OF_TOKENS},
    ends=("VisionEncoderDecoderModel", "BlipForConditionalGeneration"),
    auto="AutoModelForImageTextToText",
    pipelines=(PipelineTask("image-to-text", "image_to_text:ImageToText", "images"),),
)
