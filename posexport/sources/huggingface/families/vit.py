"""ViT: a class token, learned positions in the grid of patches, normalisation before each sublayer.

Images of any size are taken, as transformers does with ``interpolate_pos_encoding=True``; at the trained size the table
is read as it is. Where the trained image is not square transformers cannot resize its table, and here it is resized by
its own rows and columns. Not read: masked image modelling, the pooler of the features.
"""

from typing import Any

import torch

from posexport.encodings.vit_interpolated import VitInterpolated
from posexport.errors import PosexportError
from posexport.models.vision import Vision, VisionConfig
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.family import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan
from posexport.sources.huggingface.plan import origins_of as by_stem

ARCHITECTURES = {"ForImageClassification": "image-classification", "Model": "features"}
ROOTS = ("embeddings.", "encoder.", "layernorm.", "pooler.")
#: below the prefix
_MODULES = {"patches": "embeddings.patch_embeddings.projection", "final_norm": "layernorm"}
_PARAMETERS = {"prefix": "embeddings.cls_token", "added.0.table": "embeddings.position_embeddings"}
#: module of a layer here to its name in the checkpoint
_LAYER = {
    "attention.query": "attention.attention.query",
    "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value",
    "attention.output": "attention.output.dense",
    "attention_residual.norm": "layernorm_before",
    "feedforward.inner": "intermediate.dense",
    "feedforward.outer": "output.dense",
    "feedforward_residual.norm": "layernorm_after",
}


def settings(config: Config, **arrangement: Any) -> VisionConfig:
    """What ViT and BEiT say alike; PosexportError where sizes do not fit."""
    patch_height, patch_width = _sides(config, "patch_size", 16)
    if patch_height != patch_width:
        raise PosexportError(
            f"{config.label} says patch_size = {config.values['patch_size']!r:.60}; only square patches are read"
        )
    height, width = _sides(config, "image_size", 224)
    if min(height, width) < patch_height:
        raise PosexportError(
            f"{config.label} says image_size = {config.values.get('image_size', 224)!r:.60}, "
            f"patch_size = {patch_height}; an image must hold a patch at least"
        )
    try:
        return VisionConfig(
            hidden=config.size("hidden_size"),
            layers=config.size("num_hidden_layers", most=MOST_LAYERS),
            heads=config.size("num_attention_heads"),
            feedforward=config.size("intermediate_size"),
            channels=config.size("num_channels", 3),
            patch=patch_height,
            rows=height // patch_height,
            columns=width // patch_width,
            activation=config.activation("hidden_act", "gelu"),
            eps=config.number("layer_norm_eps", 1e-12),
            **arrangement,
        )
    except PosexportError as err:
        raise PosexportError(f"{config.label}: {err}") from err


def origins_of(model: Vision, prefix: str, special: dict[str, str]) -> dict[str, Origin]:
    """Where the weights come from; ``special``: parameters with names of their own, whole."""
    modules = {ours: f"{prefix}.{theirs}" for ours, theirs in _MODULES.items()}
    modules |= {"pooled.out": "classifier", "pooled.norm": f"{prefix}.pooler.layernorm"}
    for i in range(model.config.layers):
        modules |= {f"layers.{i}.{ours}": f"{prefix}.encoder.layer.{i}.{theirs}" for ours, theirs in _LAYER.items()}
    parameters = {ours: f"{prefix}.{theirs}" for ours, theirs in _PARAMETERS.items()} | special
    ours = dict(model.named_parameters())
    table = "added.0.table"  # stored for a batch of one
    named = {
        name: Origin((stored,), shape=(1, *ours[name].shape) if name == table else None)
        for name, stored in parameters.items()
        if name in ours
    }
    return by_stem(model, modules, named)


def _sides(config: Config, key: str, default: int) -> tuple[int, int]:
    """Height and width, given as one number or as two."""
    if not isinstance(config.values.get(key), list):
        side = config.size(key, default)
        return side, side
    sides = config.sizes(key)
    if len(sides) != 2:
        raise PosexportError(f"{config.label} says {key} = {list(sides)!r:.60}; it must be one number or two")
    return sides[0], sides[1]


def _plan(config: Config, task: str) -> Plan:
    sizes = settings(config)
    with torch.device("meta"):
        encoding = VitInterpolated(hidden=sizes.hidden, rows=sizes.rows, columns=sizes.columns)
        model = Vision(sizes, encoding, config.labels() if task == "image-classification" else None)
    origins = origins_of(model, "vit", {})
    if not config.flag("qkv_bias", True):
        for i in range(sizes.layers):
            origins |= {f"layers.{i}.attention.{part}.bias": Origin(()) for part in ("query", "key", "value")}
    return Plan(model, origins)


VIT = OwnFamily(
    model_type="vit",
    plan=_plan,
    prefix="vit",
    roots=ROOTS,
    architectures=ARCHITECTURES,
    other_heads={"classifier.": "the image classification head", "decoder.": "the masked image modelling head"},
    beside={"embeddings.mask_token": "the mask token of pre-training"},
)
