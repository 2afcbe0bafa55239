"""Writes the checkpoints of flat vision models of tests/golden: ViT and BEiT.

A point is named by the image's height and width in pixels. ViT is asked to resize its positions wherever the image is
not of the trained size; at that size it must give the same whether asked or not, where it can be asked.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import Checkpoints, randomise
from safetensors.torch import save_file

SIZES: dict[str, Any] = {
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 29,
    "patch_size": 3,
    "image_size": 15,
}
#: images (batch, height, width): one patch, fewer patches, the trained 5 by 5, more, with pixels left over
IMAGES = [(1, 3, 3), (1, 4, 11), (2, 15, 15), (1, 12, 18), (2, 23, 41)]
#: the directory's name: class, saved head, settings, images
PLAN: dict[str, tuple[str, str, dict[str, Any], list[tuple[int, int, int]]]] = {
    "vit-forimageclassification": ("ViT", "ForImageClassification", {"num_labels": 3}, IMAGES),
    # not square: transformers takes the trained size only
    "vit-model": (
        "ViT",
        "Model",
        {
            "patch_size": 2,
            "image_size": [6, 10],
            "num_channels": 1,
            "num_hidden_layers": 1,
            "qkv_bias": False,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-3,
        },
        [(2, 6, 10)],
    ),
    "beit-forimageclassification": (
        "Beit",
        "ForImageClassification",
        {"use_relative_position_bias": True, "num_labels": 3},
        IMAGES,
    ),
    "beit-model": (
        "Beit",
        "Model",
        {
            "use_shared_relative_position_bias": True,
            "use_absolute_position_embeddings": True,
            "use_mask_token": True,
            "use_mean_pooling": False,
            "layer_scale_init_value": 0,
            "layer_norm_eps": 1e-3,
        },
        IMAGES,
    ),
    "beit-absolute-forimageclassification": (
        "Beit",
        "ForImageClassification",
        {
            "use_absolute_position_embeddings": True,
            "use_relative_position_bias": True,
            "use_mean_pooling": False,
            "num_channels": 1,
            "num_hidden_layers": 1,
            "num_labels": 7,
        },
        IMAGES,
    ),
    "beit-shared-forimageclassification": (
        "Beit",
        "ForImageClassification",
        {
            "use_shared_relative_position_bias": True,
            "patch_size": 2,
            "image_size": 6,
            "num_channels": 1,
            "num_labels": 3,
        },
        [(1, 2, 7), (2, 6, 6), (1, 8, 15)],
    ),
}


def temper(model: torch.nn.Module) -> None:
    """Pixels that do not drown the rest; biases that can outweigh contents."""
    for name, parameter in model.named_parameters():
        if name.endswith("projection.weight"):
            parameter.data.mul_(0.3)
        if name.endswith("relative_position_bias_table"):
            parameter.data.mul_(5)
        if name.endswith(("lambda_1", "lambda_2")):
            parameter.data.add_(1)


def run(model: torch.nn.Module, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs by name; ViT resizes its positions where it has to."""
    config = model.config
    given: dict[str, Any] = {"pixel_values": pixels}
    if config.model_type == "vit" and isinstance(config.image_size, int):
        given["interpolate_pos_encoding"] = True
        if pixels.shape[2:] == (config.image_size, config.image_size):
            with torch.inference_mode():
                plain = model.base_model(pixels).last_hidden_state
                assert torch.equal(plain, model.base_model(**given).last_hidden_state)
    with torch.inference_mode():
        out = model(**given)
        base = model.base_model(**given)
    found = {"last_hidden_state": base.last_hidden_state}
    return found | ({"logits": out.logits} if "logits" in out else {})


def make(target: Path, seed: int, kind: str, saved: str, options: dict, images: list[tuple[int, int, int]]) -> None:
    rng = np.random.default_rng(seed)
    config = getattr(transformers, kind + "Config")(**{**SIZES, **options})
    model = getattr(transformers, kind + saved)(config).eval()
    randomise(model, rng)
    temper(model)
    model.save_pretrained(target, safe_serialization=True)

    def loaded(without: str = "") -> torch.nn.Module:
        fresh = type(model).from_pretrained(target).double().eval()
        for name, parameter in fresh.named_parameters():
            if without and without in name:
                parameter.data.zero_()
        return fresh

    whole = loaded()
    lost = {
        part: loaded(without=part)
        for part in ("position_embeddings", "position_bias_table")
        if any(part in name for name in whole.state_dict())
    }
    tensors = {}
    for batch, height, width in images:
        pixels = torch.from_numpy(rng.integers(-128, 129, (batch, config.num_channels, height, width)) / 64)
        found = run(whole, pixels)
        for without, other in lost.items():
            states = found["last_hidden_state"]
            moved = float((run(other, pixels)["last_hidden_state"] - states).abs().max() / states.abs().max())
            assert moved > 0.05 or min(height, width) < 6, f"{target.name}: {without} does not matter ({moved})"
        point = f"{height}x{width}"
        tensors[f"{point}.pixel_values"] = pixels.float()
        tensors |= {f"{point}.{name}": value.float().contiguous() for name, value in found.items()}
    save_file(tensors, target / "expected.safetensors")


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {
        name: partial(make, seed=seed, kind=kind, saved=saved, options=options, images=images)
        for seed, (name, (kind, saved, options, images)) in enumerate(PLAN.items(), start=30_700)
    }
