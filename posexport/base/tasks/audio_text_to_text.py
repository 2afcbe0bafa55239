"""Texts about sounds: three graphs, for sounds, embeddings of tokens, and the decoder."""

from posexport.base.tasks.task import OF_TOKENS, Task
from posexport.base.tasks.text2text_generation import TASK as SEQ2SEQ

TASK = Task(
    name="audio-text-to-text",
    what="features of sounds, and logits of the next token by a decoder of embeddings",
    outputs={"logits": OF_TOKENS},
    # class names of encoder-decoders
    ends=SEQ2SEQ.ends,
    auto="AutoModelForMultimodalLM",
    needs=("audio_config", "text_config"),
)
