"""Texts about images: three graphs, for images, embeddings of tokens, and the decoder."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task
from posexport.base.tasks.text2text_generation import TASK as SEQ2SEQ

TASK = Task(
    name="image-text-to-text",
    what="features of images, and logits of the next token by a decoder of embeddings",
    outputs={"logits": OF_TOKENS},
    # class names of encoder-decoders
    ends=SEQ2SEQ.ends,
    auto="AutoModelForImageTextToText",
    needs=("vision_config",),
    pipelines=(
        PipelineTask("image-text-to-text", "image_text_to_text:ImageTextToText", takes="images", rules="picture_rules"),
    ),
)
