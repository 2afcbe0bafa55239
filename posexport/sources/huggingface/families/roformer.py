"""RoFormer: BERT with interleaved rotations of queries and keys; its rotation's table may stand in the file."""

from typing import Any

import torch

from posexport.encodings.encoding import Encoding
from posexport.encodings.rope import Rope
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.bert import EMBEDDINGS, FILL_MASK, HEADS, POST_NORM, SUBLAYERS
from posexport.sources.huggingface.families.family import ClassifierNames, Family
from posexport.sources.huggingface.plan import Constant


def _options(config: Config) -> dict[str, Any]:
    if config.flag("rotary_value", False):
        raise PosexportError(
            f"{config.label} sets rotary_value: it turns the values too, which makes the output depend on absolute "
            f"positions; only rotations of queries and keys are read"
        )
    hidden = config.size("hidden_size")
    width = hidden if config.values.get("embedding_size") is None else config.size("embedding_size")
    return {"embedding": None if width == hidden else width}


def _encoding(config: Config, settings: EncoderConfig) -> Encoding:
    if settings.head_size % 2:
        raise PosexportError(
            f"{config.label} makes heads of size {settings.head_size} (hidden_size / num_attention_heads); a rotation "
            f"needs an even number of channels"
        )
    return Rope(head_size=settings.head_size, layout="interleaved")


def _constants(config: Config, settings: EncoderConfig) -> dict[str, Constant]:
    """The sines of all pairs, then their cosines, of every position."""
    longest = config.size("max_position_embeddings")
    angle_MF = torch.outer(
        torch.arange(longest, dtype=torch.float64),
        torch.tensor(frequencies(settings.head_size), dtype=torch.float64),
    )
    waves_MD = torch.cat((angle_MF.sin(), angle_MF.cos()), -1)
    return {"roformer.encoder.embed_positions.weight": Constant(waves_MD, atol=0.01)}


ROFORMER = Family(
    model_type="roformer",
    prefix="roformer",
    encoder={name: stem for name, stem in EMBEDDINGS.items() if name != "embeddings.encoding"}
    | {"embeddings.project": "embeddings_project"},
    layer={name: stem for name, stem in SUBLAYERS.items() if name != "attention.encoding"} | POST_NORM,
    fill_mask=FILL_MASK,
    classifier=ClassifierNames(dense="classifier.dense", out="classifier.out_proj", activation=None),
    other_heads=HEADS,
    options=_options,
    encoding=_encoding,
    fixed_length=True,
    constants=_constants,
)
