"""ALBERT: narrow embeddings, and groups of layers that share their weights.

In transformers 4.57.6 its relative scores are added after the scaling by the root of the head size, not before as
everywhere else.
"""

import functools
import re
from dataclasses import replace

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families import encoder
from posexport.checkpoints.families.bert import EMBEDDINGS, POSITIONS
from posexport.checkpoints.mapping import Plan, Scale
from posexport.errors import PosexportError

_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"


_NAMES = encoder.Names(
    prefix="albert",
    once=EMBEDDINGS | POSITIONS | {"embeddings.project": "encoder.embedding_hidden_mapping_in"},
    layer={
        "attention.query": f"{_LAYER}.attention.query",
        "attention.key": f"{_LAYER}.attention.key",
        "attention.value": f"{_LAYER}.attention.value",
        "attention.output": f"{_LAYER}.attention.dense",
        "attention.encoding": f"{_LAYER}.attention.distance_embedding",
        "attention_residual.norm": f"{_LAYER}.attention.LayerNorm",
        "feedforward.inner": f"{_LAYER}.ffn",
        "feedforward.outer": f"{_LAYER}.ffn_output",
        "feedforward_residual.norm": f"{_LAYER}.full_layer_layer_norm",
    },
    fill_mask=encoder.FillMaskNames(
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        decoder="predictions.decoder",
        bias=("predictions.bias", "predictions.decoder.bias"),
    ),
    classifier=encoder.ClassifierNames(dense="albert.pooler", out="classifier"),
)


def _build(config: Config, task: str) -> Plan:
    inner = config.size("inner_group_num", 1, most=MOST_LAYERS)
    groups = config.size("num_hidden_groups", 1, most=MOST_LAYERS)
    if (layers := config.size("num_hidden_layers", most=MOST_LAYERS)) % groups:
        raise PosexportError(
            f"{config.label} says num_hidden_groups = {groups}; it must divide num_hidden_layers = {layers}"
        )
    settings = encoder.settings(
        config, default_activation="gelu_new", embedding=config.size("embedding_size", 128), layer_groups=groups
    ).changed(layers=layers * inner, layer_groups=groups * inner, layer_group_size=inner)
    encoding = encoder.by_position_type(config, settings)
    plan = encoder.plan(config, task, _NAMES, settings, encoding, decides=("position_embedding_type",))
    for name in [name for name in plan.origins if name.endswith("attention.encoding.table")]:
        # the definition scales these scores with the rest, so that the table gets the scale's inverse
        plan.origins[name] = plan.origins[name].then(Scale(settings.head_size**0.5))
    if inner > 1:
        origins = {name: source.renamed(functools.partial(_in_group, inner)) for name, source in plan.origins.items()}
        plan = replace(plan, origins=origins)
    return plan


def _in_group(inner: int, name: str) -> str:
    """Renames layer i to its place in ALBERT's groups of ``inner`` layers that share weights."""
    return re.sub(
        r"layer_groups\.(\d+)\.albert_layers\.0",
        lambda match: f"layer_groups.{int(match[1]) // inner}.albert_layers.{int(match[1]) % inner}",
        name,
    )


ALBERT = encoder.family(
    "albert",
    _build,
    "albert",
    pooler="pooler",
    other_heads={
        "predictions.": "the fill-mask head",
        "sop_classifier.": "the sentence-order head",
        "classifier.": "a classification head",
        "qa_outputs.": "the question-answering head",
    },
)
