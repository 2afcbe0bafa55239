"""Writes the checkpoints of vision models with windows of tests/golden: Swin and Swin V2.

A point is named by the image's height and width in pixels. Swin keeps what a small map changed, so every point is a
fresh model's.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import Checkpoints, randomise
from safetensors.torch import save_file

SIZES: dict[str, Any] = {"embed_dim": 10, "depths": [2, 2], "num_heads": [2, 5], "mlp_ratio": 1.5}
#: the directory's name: class, saved head, settings, images (batch, height, width)
PLAN: dict[str, tuple[str, str, dict[str, Any], list[tuple[int, int, int]]]] = {
    # last maps of 4 by 4 (padded before or not), of one window in one direction, of more in both
    "swin-forimageclassification": (
        "Swin",
        "ForImageClassification",
        {"patch_size": 2, "window_size": 4, "image_size": 32, "num_labels": 3},
        [(1, 13, 15), (2, 16, 16), (1, 16, 20), (1, 23, 16), (1, 17, 20), (2, 34, 21)],
    ),
    "swin-model": (
        "Swin",
        "Model",
        {
            "patch_size": 3,
            "window_size": 3,
            "image_size": 36,
            "num_channels": 2,
            "embed_dim": 6,
            "depths": [1, 2, 2],
            "num_heads": [1, 2, 3],
            "qkv_bias": False,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-3,
        },
        [(1, 25, 26), (1, 36, 40), (1, 37, 60), (2, 50, 38)],
    ),
    # maps smaller than their window are padded
    "swinv2-forimageclassification": (
        "Swinv2",
        "ForImageClassification",
        {
            "patch_size": 2,
            "window_size": 4,
            "image_size": 32,
            "pretrained_window_sizes": [6, 3, 0, 0],
            "num_labels": 3,
        },
        [(1, 1, 3), (1, 13, 15), (2, 16, 16), (1, 16, 23), (2, 34, 21)],
    ),
    # a last stage of one window of 3 that is not shifted, whatever the image
    "swinv2-model": (
        "Swinv2",
        "Model",
        {
            "patch_size": 2,
            "window_size": 5,
            "image_size": [15, 40],
            "num_channels": 1,
            "pretrained_window_sizes": [0, 0],
            "qkv_bias": False,
            "layer_norm_eps": 1e-3,
        },
        [(1, 15, 40), (1, 20, 20), (2, 29, 24)],
    ),
}


def temper(model: torch.nn.Module) -> None:
    """Biases that can outweigh contents; factors of the cosines around 4, one beyond the largest."""
    for name, parameter in model.named_parameters():
        if name.endswith("relative_position_bias_table"):
            parameter.data.mul_(4)
    scales = [p for name, p in model.named_parameters() if name.endswith("logit_scale")]
    for scale in scales:
        scale.data.add_(1.5)
    if scales:
        scales[0].data[0] = 5.0


def run(target: Path, kind: str, saved: str, pixels: torch.Tensor, *, flat: bool = False) -> dict[str, torch.Tensor]:
    """What a fresh float64 model gives; ``flat``: with the same bias for all offsets."""
    model = getattr(transformers, kind + saved).from_pretrained(target).double().eval()
    if flat:
        for name, parameter in model.named_parameters():
            if name.endswith(("relative_position_bias_table", "position_bias_mlp.2.weight")):
                parameter.data.zero_()
    with torch.inference_mode():
        out = model(pixels)
        base = model.base_model(pixels)
    found = {"last_hidden_state": base.last_hidden_state}
    return found | ({"logits": out.logits} if "logits" in out else {})


def make(target: Path, seed: int, kind: str, saved: str, options: dict, images: list[tuple[int, int, int]]) -> None:
    rng = np.random.default_rng(seed)
    config = getattr(transformers, kind + "Config")(**{**SIZES, **options})
    model = getattr(transformers, kind + saved)(config).eval()
    randomise(model, rng)
    temper(model)
    model.save_pretrained(target, safe_serialization=True)
    tensors = {}
    for batch, height, width in images:
        pixels = rng.integers(-128, 129, (batch, config.num_channels, height, width)) / 64
        given = torch.from_numpy(pixels)
        found = run(target, kind, saved, given)
        flat = run(target, kind, saved, given, flat=True)
        for name, value in found.items():
            moved = float((flat[name] - value).abs().max() / value.abs().max())
            assert moved > 0.05 or min(height, width) < 4, f"{target.name}: positions do not matter ({name}, {moved})"
        point = f"{height}x{width}"
        tensors[f"{point}.pixel_values"] = given.float()
        tensors |= {f"{point}.{name}": value.float().contiguous() for name, value in found.items()}
    save_file(tensors, target / "expected.safetensors")


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {
        name: partial(make, seed=seed, kind=kind, saved=saved, options=options, images=images)
        for seed, (name, (kind, saved, options, images)) in enumerate(PLAN.items(), start=30_500)
    }
