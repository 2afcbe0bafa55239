"""ELECTRA: embeddings may be narrower than the model, with a projection between; its own heads."""

from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families.bert import (
    EMBEDDINGS,
    POSITIONS,
    POST_NORM,
    RELATIVE_POSITIONS,
    SUBLAYERS,
)
from posexport.sources.huggingface.families.text_encoder import (
    ARCHITECTURES,
    ClassifierNames,
    EncoderNames,
    FillMaskNames,
    by_position_type,
    encoder_family,
    encoder_plan,
    encoder_settings,
)
from posexport.sources.huggingface.plan import Plan

_NAMES = EncoderNames(
    prefix="electra",
    once=EMBEDDINGS | POSITIONS | {"embeddings.project": "embeddings_project"},
    layer=SUBLAYERS | RELATIVE_POSITIONS | POST_NORM,
    fill_mask=FillMaskNames(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        decoder="generator_lm_head",
        bias=("generator_lm_head.bias",),
        activation="gelu",
    ),
    classifier=ClassifierNames(dense="classifier.dense", out="classifier.out_proj", activation="gelu"),
)


def _build(config: Config, task: str) -> Plan:
    width = config.size("embedding_size", 128)
    settings = encoder_settings(config, embedding=None if width == config.size("hidden_size") else width)
    encoding = by_position_type(config, settings)
    return encoder_plan(config, task, _NAMES, settings, encoding, decides=("position_embedding_type",))


ELECTRA = encoder_family(
    "electra",
    _build,
    "electra",
    other_heads={
        "generator_predictions.": "the generator's head",
        "generator_lm_head.": "the generator's decoder",
        "discriminator_predictions.": "the discriminator's head",
        "classifier.": "a classification head",
        "qa_outputs.": "the question-answering head",
    },
    # its pre-training class is the discriminator, which fills no masks
    architectures={**ARCHITECTURES, "ForPreTraining": "features"},
)
