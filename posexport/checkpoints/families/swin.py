"""Swin: attention in shifted windows of an image, a learned bias for every offset in a window.

Images are accepted if the last feature map is at least one window in both directions, as in transformers, which keeps
what a small map changed (`set_shift_and_window_size`), so that its next call may differ: the values here are a
fresh model's. Not read: absolute position embeddings (``use_absolute_embeddings``), with which transformers itself
fails; masked image modelling.
"""

import math
from typing import Any

import torch
from torch import Tensor

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Constant, Origin, Plan, in_layers, origin, origins_of
from posexport.encodings.encoding import Encoding
from posexport.encodings.swin import Swin
from posexport.errors import PosexportError
from posexport.models.windowed import Windowed
from posexport.models.windowed_block import WindowedConfig

ARCHITECTURES = {"ForImageClassification": "image-classification", "Model": "features"}
ROOTS = ("embeddings.", "encoder.", "layernorm.")
HEADS = {"classifier.": "the image classification head", "decoder.": "the masked image modelling head"}
BESIDE: dict[str, str | None] = {"embeddings.mask_token": "the mask token of pre-training"}
#: module of a block here to its name in the checkpoint
_BLOCK = {
    "attention_norm": "layernorm_before",
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "feedforward_norm": "layernorm_after",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "attention.encoding.first": "attention.self.continuous_position_bias_mlp.0",
    "attention.encoding.second": "attention.self.continuous_position_bias_mlp.2",
}
#: parameters with a different name in the checkpoint
_PARAMETERS = {
    "attention.logit_scale": "attention.self.logit_scale",
    "attention.encoding.table": "attention.self.relative_position_bias_table",
}


def settings(config: Config, **arrangement: Any) -> WindowedConfig:
    """The settings that Swin and Swin V2 share; PosexportError where sizes do not fit."""
    if config.flag("use_absolute_embeddings", False):
        raise PosexportError(
            f"{config.label} sets use_absolute_embeddings: absolute positions beside those in windows are not read "
            "(transformers itself fails with them)"
        )
    depths = config.sizes("depths", most=MOST_LAYERS)
    ratio = config.values.get("mlp_ratio", 4.0)
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not math.isfinite(ratio) or ratio <= 0:
        raise PosexportError(f"{config.label} says mlp_ratio = {ratio!r:.60}; it must be a number above 0")
    with config.named_in_errors():
        return WindowedConfig(
            channels=config.size("num_channels", 3),
            patch=config.size("patch_size"),
            hidden=config.size("embed_dim"),
            depths=depths,
            heads=config.sizes("num_heads"),
            window=config.size("window_size"),
            mlp_ratio=float(ratio),
            activation=config.activation("hidden_act", "gelu"),
            eps=config.number("layer_norm_eps", 1e-5),
            qkv_bias=config.flag("qkv_bias", True),
            **arrangement,
        )


def plan_of(config: Config, settings: WindowedConfig, encodings: list[Encoding], task: str, prefix: str) -> Plan:
    """The model on the meta device with these encodings (made there too), and where its weights come from."""
    with torch.device("meta"):
        model = Windowed(settings, encodings, config.labels() if task == "image-classification" else None)
    modules = {
        "projection": origin(f"{prefix}.embeddings.patch_embeddings.projection"),
        "embedding_norm": origin(f"{prefix}.embeddings.norm"),
        "final_norm": origin(f"{prefix}.layernorm"),
        "classifier": origin("classifier"),
    }
    merging = {f"merging.{path}": f"downsample.{path}" for path in ("norm", "reduction")}
    modules |= in_layers(len(settings.depths), "stages", f"{prefix}.encoder.layers.{{i}}.", merging)
    parameters: dict[str, Origin] = {}
    constants: dict[str, Constant] = {}
    for stage, depth in enumerate(settings.depths):
        here, there = f"stages.{stage}.blocks", f"{prefix}.encoder.layers.{stage}.blocks"
        modules |= in_layers(depth, here, f"{there}.{{i}}.", _BLOCK)
        parameters |= in_layers(depth, here, f"{there}.{{i}}.", _PARAMETERS)
        index = Constant(_offset_rows(settings.window_of(stage)))
        constants |= {f"{there}.{i}.attention.self.relative_position_index": index for i in range(depth)}
    return Plan(model, origins_of(model, modules, parameters), constants=constants)


def _offset_rows(window: int) -> Tensor:
    """The row of the biases for every pair of patches, which files hold although it is a formula."""
    place_PA = torch.cartesian_prod(*[torch.arange(window)] * 2).view(-1, 2)
    offset_PPA = place_PA[:, None] - place_PA[None, :] + window - 1
    return offset_PPA[..., 0] * (2 * window - 1) + offset_PPA[..., 1]


def _build(config: Config, task: str) -> Plan:
    sizes = settings(config)
    with torch.device("meta"):
        encodings: list[Encoding] = [Swin(window=sizes.window, heads=heads) for heads in sizes.heads]
    return plan_of(config, sizes, encodings, task, "swin")


SWIN = Family(
    model_type="swin",
    build=_build,
    prefix="swin",
    roots=ROOTS,
    architectures=ARCHITECTURES,
    other_heads=HEADS,
    beside=BESIDE,
)
