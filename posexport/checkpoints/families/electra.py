"""ELECTRA: embeddings may be narrower than the model, with a projection between; heads differ from BERT's."""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import bert, encoder
from posexport.checkpoints.mapping import Plan

_NAMES = encoder.Names(
    prefix="electra",
    once=bert.EMBEDDINGS | bert.POSITIONS | {"embeddings.project": "embeddings_project"},
    layer=bert.SUBLAYERS | bert.RELATIVE_POSITIONS | bert.POST_NORM,
    fill_mask=encoder.FillMaskNames(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        decoder="generator_lm_head",
        bias=("generator_lm_head.bias",),
        activation="gelu",
    ),
    classifier=encoder.ClassifierNames(dense="classifier.dense", out="classifier.out_proj", activation="gelu"),
)


def _build(config: Config, task: str) -> Plan:
    width = config.size("embedding_size", 128)
    settings = encoder.settings(config, embedding=None if width == config.size("hidden_size") else width)
    encoding = encoder.by_position_type(config, settings)
    return encoder.plan(config, task, _NAMES, settings, encoding, decides=("position_embedding_type",))


ELECTRA = encoder.family(
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
    architectures={**encoder.ARCHITECTURES, "ForPreTraining": "features"},
)
