"""RoBERTa and its heirs: positions are counted after the padding id, the classifier has its own dense layer."""

from typing import Any

from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.bert import (
    EMBEDDINGS,
    POSITIONS,
    POST_NORM,
    RELATIVE_POSITIONS,
    SUBLAYERS,
)
from posexport.sources.huggingface.families.text_encoder import (
    ClassifierNames,
    EncoderNames,
    FillMaskNames,
    by_position_type,
    encoder_family,
    encoder_plan,
    encoder_settings,
)
from posexport.sources.huggingface.plan import Plan

FILL_MASK = FillMaskNames(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    decoder="lm_head.decoder",
    bias=("lm_head.bias", "lm_head.decoder.bias"),
    activation="gelu",
)
CLASSIFIER = ClassifierNames(dense="classifier.dense", out="classifier.out_proj")
HEADS = {
    "lm_head.": "the fill-mask head",
    "classifier.": "a classification head",
    "qa_outputs.": "the question-answering head",
}


def _build(config: Config, task: str, names: EncoderNames, **arrangement: Any) -> Plan:
    settings = encoder_settings(config, padding_id=1, after_padding=True, **arrangement)
    encoding = by_position_type(config, settings, after_padding=True)
    decides = ("position_embedding_type",)
    return encoder_plan(config, task, names, settings, encoding, after_padding=True, decides=decides)


def _roberta(config: Config, task: str) -> Plan:
    layer = SUBLAYERS | RELATIVE_POSITIONS | POST_NORM
    once = EMBEDDINGS | POSITIONS
    names = EncoderNames(prefix="roberta", once=once, layer=layer, fill_mask=FILL_MASK, classifier=CLASSIFIER)
    return _build(config, task, names)


def _prelayernorm(config: Config, task: str) -> Plan:
    """Normalises the embeddings, then before each sublayer, and once at the end."""
    norms = {
        "attention_residual.norm": "encoder.layer.{i}.attention.LayerNorm",
        "feedforward_residual.norm": "encoder.layer.{i}.intermediate.LayerNorm",
    }
    names = EncoderNames(
        prefix="roberta_prelayernorm",
        once=EMBEDDINGS | POSITIONS | {"final_norm": "LayerNorm"},
        layer=SUBLAYERS | RELATIVE_POSITIONS | norms,
        fill_mask=FILL_MASK,
        classifier=CLASSIFIER,
    )
    return _build(config, task, names, norm="pre", final_norm=True)


ROBERTA, XLM_ROBERTA, CAMEMBERT = (
    encoder_family(name, _roberta, "roberta", pooler="pooler.dense", other_heads=HEADS)
    for name in ("roberta", "xlm-roberta", "camembert")
)
ROBERTA_PRELAYERNORM = encoder_family(
    "roberta-prelayernorm", _prelayernorm, "roberta_prelayernorm", pooler="pooler.dense", other_heads=HEADS
)
