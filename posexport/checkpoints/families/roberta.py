"""RoBERTa and its heirs: positions are counted after the padding id, the classifier has a separate dense layer."""

from typing import Any

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import bert, encoder
from posexport.checkpoints.mapping import Plan

FILL_MASK = encoder.FillMaskNames(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    decoder="lm_head.decoder",
    bias=("lm_head.bias", "lm_head.decoder.bias"),
    activation="gelu",
)
CLASSIFIER = encoder.ClassifierNames(dense="classifier.dense", out="classifier.out_proj")
HEADS = {
    "lm_head.": "the fill-mask head",
    "classifier.": "a classification head",
    "qa_outputs.": "the question-answering head",
}


def _build(config: Config, task: str, names: encoder.Names, **arrangement: Any) -> Plan:
    settings = encoder.settings(config, padding_id=1, after_padding=True, **arrangement)
    encoding = encoder.by_position_type(config, settings, after_padding=True)
    decides = ("position_embedding_type",)
    return encoder.plan(config, task, names, settings, encoding, after_padding=True, decides=decides)


def _roberta(config: Config, task: str) -> Plan:
    layer = bert.SUBLAYERS | bert.RELATIVE_POSITIONS | bert.POST_NORM
    once = bert.EMBEDDINGS | bert.POSITIONS
    names = encoder.Names(prefix="roberta", once=once, layer=layer, fill_mask=FILL_MASK, classifier=CLASSIFIER)
    return _build(config, task, names)


def _prelayernorm(config: Config, task: str) -> Plan:
    """Normalises the embeddings, then before each sublayer, and once at the end."""
    norms = {
        "attention_residual.norm": "encoder.layer.{i}.attention.LayerNorm",
        "feedforward_residual.norm": "encoder.layer.{i}.intermediate.LayerNorm",
    }
    names = encoder.Names(
        prefix="roberta_prelayernorm",
        once=bert.EMBEDDINGS | bert.POSITIONS | {"final_norm": "LayerNorm"},
        layer=bert.SUBLAYERS | bert.RELATIVE_POSITIONS | norms,
        fill_mask=FILL_MASK,
        classifier=CLASSIFIER,
    )
    return _build(config, task, names, norm="pre", final_norm=True)


ROBERTA, XLM_ROBERTA, CAMEMBERT = (
    encoder.family(name, _roberta, "roberta", pooler="pooler.dense", other_heads=HEADS)
    for name in ("roberta", "xlm-roberta", "camembert")
)
ROBERTA_PRELAYERNORM = encoder.family(
    "roberta-prelayernorm", _prelayernorm, "roberta_prelayernorm", pooler="pooler.dense", other_heads=HEADS
)
