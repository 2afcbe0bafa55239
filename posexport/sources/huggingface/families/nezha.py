"""NEZHA: BERT with fixed sinusoids of the clipped distance, on keys and on values; no absolute positions."""

import torch

from posexport.encodings.encoding import Encoding
from posexport.encodings.nezha import Nezha
from posexport.models.encoder import EncoderConfig
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.bert import CLASSIFIER, EMBEDDINGS, FILL_MASK, HEADS, POST_NORM, SUBLAYERS
from posexport.sources.huggingface.families.family import Family


def _encoding(config: Config, settings: EncoderConfig) -> Encoding:
    # it has numbers and no parameters: it is made whole, while the rest is made without weights
    with torch.device("cpu"):
        return Nezha(clip=config.size("max_relative_position", 64), head_size=settings.head_size)


NEZHA = Family(
    model_type="nezha",
    prefix="nezha",
    encoder={name: stem for name, stem in EMBEDDINGS.items() if name != "embeddings.encoding"},
    layer={name: stem for name, stem in SUBLAYERS.items() if name != "attention.encoding"} | POST_NORM,
    fill_mask=FILL_MASK,
    classifier=CLASSIFIER,
    pooler="pooler.dense",
    other_heads=HEADS,
    encoding=_encoding,
    fixed_length=True,
)
