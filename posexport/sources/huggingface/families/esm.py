"""ESM (ESM-2): rotations in halves, normalisation before each sublayer, embeddings of mask tokens left out.

The share of mask tokens is that among the real tokens, as in the released code of ESM and in transformers 5; 4.57.6
takes it among all, so that there padding changes a row that has mask tokens. Not read: the tables of ESM-1b, folding
models, contact predictions.
"""

from typing import Any

import torch

from posexport.encodings.encoding import Encoding
from posexport.encodings.rope import Rope
from posexport.encodings.waves import frequencies
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.bert import SUBLAYERS
from posexport.sources.huggingface.families.family import ClassifierNames, Family, FillMaskNames
from posexport.sources.huggingface.plan import Constant


def _options(config: Config) -> dict[str, Any]:
    kind = config.text("position_embedding_type", "absolute")
    if kind != "rotary":
        raise PosexportError(
            f"{config.label} says position_embedding_type = {kind!r:.60}; of ESM only rotary, as in ESM-2, is read"
        )
    if config.flag("is_folding_model", False):
        raise PosexportError(f"{config.label} sets is_folding_model: only the language model is read, not the folding")
    before = config.values.get("emb_layer_norm_before") is not None and config.flag("emb_layer_norm_before", False)
    dropped = None
    if config.flag("token_dropout", False):
        dropped = config.size("mask_token_id", least=0, most=config.size("vocab_size") - 1)
        config.remark(
            "sets token_dropout: the share of mask tokens is that among a row's real tokens; transformers 4.57 counts "
            "padding too, so that there padding changes rows with mask tokens"
        )
    return {"embedding_norm": before, "dropped_id": dropped}


def _encoding(config: Config, settings: EncoderConfig) -> Encoding:
    if settings.head_size % 2:
        raise PosexportError(
            f"{config.label} makes heads of size {settings.head_size} (hidden_size / num_attention_heads); a rotation "
            f"needs an even number of channels"
        )
    return Rope(head_size=settings.head_size, base=_base(config))


def _constants(config: Config, settings: EncoderConfig) -> dict[str, Constant]:
    """Once a layer, or once for all, which transformers 5 writes with the layers' number left open (5.23.0 does)."""
    formula = torch.tensor(frequencies(settings.head_size, base=_base(config)), dtype=torch.float64)
    wanted = Constant(formula, rtol=0.01)
    stem = "esm.encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq"
    return {stem.format(i=i): wanted for i in [*range(settings.layers), "*"]}


def _base(config: Config) -> float:
    """``rope_theta``, which transformers 5 has; before, it was 10000 always."""
    return config.positive("rope_theta", 10000.0) or 10000.0


ESM = Family(
    model_type="esm",
    prefix="esm",
    encoder={
        "embeddings.token": "embeddings.word_embeddings",
        "embeddings.norm": "embeddings.layer_norm",
        "final_norm": "encoder.emb_layer_norm_after",
    },
    layer={name: stem for name, stem in SUBLAYERS.items() if name != "attention.encoding"}
    | {
        "attention_residual.norm": "encoder.layer.{i}.attention.LayerNorm",
        "feedforward_residual.norm": "encoder.layer.{i}.LayerNorm",
    },
    fill_mask=FillMaskNames(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        decoder="lm_head.decoder",
        bias=("lm_head.bias",),  # its decoder has none
        activation="gelu",
    ),
    classifier=ClassifierNames(dense="classifier.dense", out="classifier.out_proj"),
    pooler="pooler.dense",
    other_heads={
        "lm_head.": "the fill-mask head",
        "classifier.": "a classification head",
    },
    arrangement={"types": 0, "norm": "pre", "final_norm": True},
    options=_options,
    activation="gelu",
    padding_id=1,
    encoding=_encoding,
    constants=_constants,
    beside={"contact_head.": "the head for contacts"},
)
