"""RoBERTa and its heirs: positions are counted after the padding id, the classifier has its own dense layer."""

import functools

from posexport.sources.huggingface.families.bert import EMBEDDINGS, POST_NORM, SUBLAYERS
from posexport.sources.huggingface.families.family import ClassifierNames, Family, FillMaskNames

_roberta = functools.partial(
    Family,
    fill_mask=FillMaskNames(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        decoder="lm_head.decoder",
        bias=("lm_head.bias", "lm_head.decoder.bias"),
        activation="gelu",
    ),
    classifier=ClassifierNames(dense="classifier.dense", out="classifier.out_proj"),
    other_heads={
        "lm_head.": "the fill-mask head",
        "classifier.": "a classification head",
        "qa_outputs.": "the question-answering head",
    },
    pooler="pooler.dense",
    after_padding=True,
    padding_id=1,
)

ROBERTA, XLM_ROBERTA, CAMEMBERT = (
    _roberta(model_type=name, prefix="roberta", encoder=EMBEDDINGS, layer=SUBLAYERS | POST_NORM)
    for name in ("roberta", "xlm-roberta", "camembert")
)
#: Normalises the embeddings, then before each sublayer, and once at the end.
ROBERTA_PRELAYERNORM = _roberta(
    model_type="roberta-prelayernorm",
    prefix="roberta_prelayernorm",
    encoder=EMBEDDINGS | {"final_norm": "LayerNorm"},
    layer=SUBLAYERS
    | {
        "attention_residual.norm": "encoder.layer.{i}.attention.LayerNorm",
        "feedforward_residual.norm": "encoder.layer.{i}.intermediate.LayerNorm",
    },
    arrangement={"norm": "pre", "final_norm": True},
)
