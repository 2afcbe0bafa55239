"""NEZHA: BERT with fixed sinusoids of the clipped distance, on keys and on values; no absolute positions."""

from posexport.encodings.nezha import Nezha
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.bert import EMBEDDINGS, FILL_MASK, HEADS, POST_NORM, SUBLAYERS, classifier
from posexport.sources.huggingface.families.text_encoder import (
    EncoderNames,
    encoder_family,
    encoder_plan,
    encoder_settings,
)
from posexport.sources.huggingface.plan import Plan

_NAMES = EncoderNames(
    prefix="nezha",
    once=EMBEDDINGS,
    layer=SUBLAYERS | POST_NORM,
    fill_mask=FILL_MASK,
    classifier=classifier("nezha"),
)


def _build(config: Config, task: str) -> Plan:
    settings = encoder_settings(config)
    # it has values and no parameters: it is not made on the meta device as the rest is
    encoding = Nezha(clip=config.size("max_relative_position", 64), head_size=settings.head_size)
    # transformers keeps them in a table, where inputs end
    return encoder_plan(config, task, _NAMES, settings, encoding, longest=config.size("max_position_embeddings"))


NEZHA = encoder_family("nezha", _build, "nezha", pooler="pooler.dense", other_heads=HEADS)
