"""ELECTRA: embeddings may be narrower than the model, with a projection between; its own heads."""

from typing import Any

from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.bert import EMBEDDINGS, POST_NORM, SUBLAYERS
from posexport.sources.huggingface.families.family import ARCHITECTURES, ClassifierNames, Family, FillMaskNames


def _options(config: Config) -> dict[str, Any]:
    width = config.size("embedding_size", 128)
    return {"embedding": None if width == config.size("hidden_size") else width}


ELECTRA = Family(
    model_type="electra",
    prefix="electra",
    encoder=EMBEDDINGS | {"embeddings.project": "embeddings_project"},
    layer=SUBLAYERS | POST_NORM,
    fill_mask=FillMaskNames(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        decoder="generator_lm_head",
        bias=("generator_lm_head.bias",),
        activation="gelu",
    ),
    classifier=ClassifierNames(dense="classifier.dense", out="classifier.out_proj", activation="gelu"),
    other_heads={
        "generator_predictions.": "the generator's head",
        "generator_lm_head.": "the generator's decoder",
        "discriminator_predictions.": "the discriminator's head",
        "classifier.": "a classification head",
        "qa_outputs.": "the question-answering head",
    },
    options=_options,
    # its pre-training class is the discriminator, which fills no masks
    architectures={**ARCHITECTURES, "ForPreTraining": "features"},
)
