"""The text in an image (TrOCR, arXiv:2109.10282; Donut, arXiv:2111.15664), or about it (BLIP, arXiv:2201.12086)."""

from posexport.tasks.task import OF_TOKENS, Task

TASK = Task(
    name="image-to-text",
    what="an image's states, and logits of the next token by a decoder that reads them",
    reads=("images",),
    outputs={"logits": OF_TOKENS},
    varies=("batch", "length", "padding", "past"),
    ends=("VisionEncoderDecoderModel", "BlipForConditionalGeneration"),
    auto="AutoModelForImageTextToText",
)
