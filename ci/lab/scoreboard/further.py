"""Inputs that few models have: prompts of masks, patches of SigLIP 2, MAE's noise, OneFormer's task, a trajectory.

Shape letters: B batch, T tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

#: groups of points for an image, and points of a group
_GROUPS, _POINTS = 2, 3
_Make = Callable[[Any, int, np.random.Generator], np.ndarray]


def _points(config: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Points in pixels of the prepared image."""
    size = config.vision_config.image_size if hasattr(config.vision_config, "image_size") else 64
    side = size if isinstance(size, int) else size[0]
    return rng.uniform(0, side, (batch, _GROUPS, _POINTS, 2))


def _labels(_config: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Points of the object and of another one."""
    return rng.integers(0, 2, (batch, _GROUPS, _POINTS))


def _patches(config: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    vision = config.vision_config
    return rng.standard_normal((batch, vision.num_patches, vision.num_channels * vision.patch_size**2))


def _shapes(config: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Rows and columns of patches, at most as many as there are."""
    edge = int(config.vision_config.num_patches**0.5)
    return rng.integers(max(edge - 1, 1), edge + 1, (batch, 2))


def _noise(config: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((batch, (config.image_size // config.patch_size) ** 2))


def _task(config: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, config.text_encoder_vocab_size, (batch, config.task_seq_len))


def _spectrogram(config: Any, batch: int, rng: np.random.Generator) -> np.ndarray:
    """As many frames as CLAP makes a square image of."""
    audio = config.audio_config
    frames = audio.spec_size * (audio.spec_size // audio.num_mel_bins)
    return rng.standard_normal((batch, 1, frames, audio.num_mel_bins))


#: by model_type and name of the input
_MAKERS: dict[str, dict[str, _Make]] = {
    **{kind: {"input_points": _points, "input_labels": _labels} for kind in ("sam", "sam2")},
    "siglip2": {"pixel_values": _patches, "spatial_shapes": _shapes},
    "vit_mae": {"noise": _noise},
    "oneformer": {"task_inputs": _task},
    "clap": {"input_features": _spectrogram},
}


def further(config: Any, batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The inputs that models of this type alone have."""
    arrays = {
        name: make(config, batch, rng) for name, make in _MAKERS.get(getattr(config, "model_type", ""), {}).items()
    }
    if "spatial_shapes" in arrays:  # further patches are padding
        real = arrays["spatial_shapes"].prod(1)[:, None]
        arrays["pixel_attention_mask"] = (np.arange(arrays["pixel_values"].shape[1]) < real).astype(np.int64)
    return arrays


def trajectory(config: Any, batch: int, tokens: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """States, actions and returns of the steps of a decision transformer."""
    sizes = {"states": config.state_dim, "actions": config.act_dim, "returns_to_go": 1}
    arrays = {name: rng.standard_normal((batch, tokens, size)) for name, size in sizes.items()}
    return {**arrays, "timesteps": rng.integers(0, config.max_ep_len, (batch, tokens))}
