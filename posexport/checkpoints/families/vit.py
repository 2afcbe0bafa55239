"""ViT: a class token, learned positions in the grid of patches, normalisation before each sublayer.

Images of any size are accepted, as in transformers with ``interpolate_pos_encoding=True``; at the trained size the
table is not resized. Where the trained image is not square transformers cannot resize its table, and here it is resized
by its rows and columns. Not read: masked image modelling, the pooler of the features.
"""

from typing import Any

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import ZEROS, NameMap, Origin, Plan, Reshape, in_layers, origin, origins_of
from posexport.encodings.vit_interpolated import VitInterpolated
from posexport.errors import PosexportError
from posexport.models.vision import Vision, VisionConfig

ARCHITECTURES = {"ForImageClassification": "image-classification", "Model": "features"}
ROOTS = ("embeddings.", "encoder.", "layernorm.", "pooler.")
#: below the prefix
_MODULES = {
    "patches": "embeddings.patch_embeddings.projection",
    "final_norm": "layernorm",
    "pooled.norm": "pooler.layernorm",
}
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
    """The settings that ViT and BEiT share; PosexportError where sizes do not fit."""
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
    with config.named_in_errors():
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


def origins(model: Vision, prefix: str, layer_parameters: NameMap) -> dict[str, Origin]:
    """The origins of the weights; ``layer_parameters``: parameters of one layer or of all with different names."""
    count, there = model.config.layers, f"{prefix}.encoder.layer.{{i}}."
    modules = {path: origin(f"{prefix}.{stored}") for path, stored in _MODULES.items()}
    modules |= in_layers(count, "layers", there, _LAYER) | {"pooled.out": origin("classifier")}
    parameters = in_layers(count, "layers", there, layer_parameters)
    parameters["prefix"] = origin(f"{prefix}.embeddings.cls_token")
    if (table := dict(model.named_parameters()).get("added.0.table")) is not None:
        for_one_image = Reshape((1, *table.shape))
        parameters["added.0.table"] = Origin((f"{prefix}.embeddings.position_embeddings",), (for_one_image,))
    return origins_of(model, modules, parameters)


def _sides(config: Config, key: str, default: int) -> tuple[int, int]:
    """Reads height and width: one number or a list of two."""
    if not isinstance(config.values.get(key), list):
        side = config.size(key, default)
        return side, side
    sides = config.sizes(key)
    if len(sides) != 2:
        raise PosexportError(f"{config.label} says {key} = {list(sides)!r:.60}; it must be one number or two")
    return sides[0], sides[1]


def _build(config: Config, task: str) -> Plan:
    sizes = settings(config)
    with torch.device("meta"):
        encoding = VitInterpolated(hidden=sizes.hidden, rows=sizes.rows, columns=sizes.columns)
        model = Vision(sizes, encoding, config.labels() if task == "image-classification" else None)
    without = () if config.flag("qkv_bias", True) else ("query", "key", "value")
    return Plan(model, origins(model, "vit", {f"attention.{projection}.bias": ZEROS for projection in without}))


VIT = Family(
    model_type="vit",
    build=_build,
    prefix="vit",
    roots=ROOTS,
    architectures=ARCHITECTURES,
    other_heads={"classifier.": "the image classification head", "decoder.": "the masked image modelling head"},
    beside={"embeddings.mask_token": "the mask token of pre-training"},
)
