"""MPNet: RoBERTa's numbering and heads, no token types, absolute positions and T5's bias by distance together."""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import encoder
from posexport.checkpoints.families.roberta import CLASSIFIER, FILL_MASK, HEADS
from posexport.checkpoints.mapping import Plan
from posexport.encodings.encoding import Encoding
from posexport.encodings.mpnet import Mpnet
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig

#: whatever pad_token_id says, transformers counts positions from the token after this one
_PADDING = 1
_BUCKETS = 32
_LAYER = "encoder.layer.{i}"
_NAMES = encoder.Names(
    prefix="mpnet",
    once={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "embeddings.encoding": "embeddings.position_embeddings",
        "embeddings.encoding.bias": "encoder.relative_attention_bias",
    },
    layer={
        "attention.query": f"{_LAYER}.attention.attn.q",
        "attention.key": f"{_LAYER}.attention.attn.k",
        "attention.value": f"{_LAYER}.attention.attn.v",
        "attention.output": f"{_LAYER}.attention.attn.o",
        "attention_residual.norm": f"{_LAYER}.attention.LayerNorm",
        "feedforward.inner": f"{_LAYER}.intermediate.dense",
        "feedforward.outer": f"{_LAYER}.output.dense",
        "feedforward_residual.norm": f"{_LAYER}.output.LayerNorm",
    },
    fill_mask=FILL_MASK,
    classifier=CLASSIFIER,
)


def _build(config: Config, task: str) -> Plan:
    settings = encoder.settings(config, padding_id=_PADDING, after_padding=True, types=0)
    with torch.device("meta"):
        encoding = _encoding(config, settings)
    return encoder.plan(config, task, _NAMES, settings, encoding, after_padding=True)


def _encoding(config: Config, settings: EncoderConfig) -> Encoding:
    longest = config.size("max_position_embeddings")
    if settings.padding_id != _PADDING:
        raise PosexportError(
            f"{config.label} says pad_token_id = {settings.padding_id}; MPNet's positions are counted by the padding "
            f"token {_PADDING}, so it must be that"
        )
    if longest <= _PADDING + 1:
        raise PosexportError(
            f"{config.label} says max_position_embeddings = {longest}; positions start at {_PADDING + 1}, so it must "
            f"be greater"
        )
    buckets = config.size("relative_attention_num_buckets", _BUCKETS)
    if buckets != _BUCKETS:
        raise PosexportError(
            f"{config.label} says relative_attention_num_buckets = {buckets}; transformers sorts distances into "
            f"{_BUCKETS} buckets whatever it says, so it must be that"
        )
    return Mpnet(max_positions=longest, hidden=settings.hidden, heads=settings.heads, buckets=buckets)


MPNET = encoder.family("mpnet", _build, "mpnet", pooler="pooler.dense", other_heads=HEADS)
