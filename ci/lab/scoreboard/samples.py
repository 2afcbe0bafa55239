"""Random inputs of a model of transformers by the names of its ``forward``: what exporters trace and the judge feeds.

Runs in every environment with PyTorch and transformers 4.57 or 5. Shape letters: B batch, T tokens.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ci.lab.scoreboard.further import further, trajectory

Arrays = dict[str, np.ndarray]
#: ids below this number are special tokens of some type
_FIRST_WORD = 5


@dataclass(frozen=True)
class Size:
    """Sizes of a sample: tokens, pixels (height, width), and samples of a sound; a model reads those that it has."""

    batch: int
    tokens: int = 7
    pixels: tuple[int, int] = (0, 0)
    sound: int = 400
    #: real tokens of every row and the side of the padding; empty: no padding
    rows: tuple[int, ...] = ()
    side: str = ""

    def described(self, modality: str) -> str:
        """The size as a report names it."""
        sizes = {"text": f"length {self.tokens}", "sound": f"{self.sound} samples", "series": "its context"}
        what = sizes.get(modality) or f"{self.pixels[0]}x{self.pixels[1]} pixels"
        padding = f", {self.side} padding to {'/'.join(map(str, self.rows))} tokens" if self.rows else ""
        return f"batch {self.batch}, {what}{padding}"


def accepted(model: Any) -> set[str]:
    """The parameters of a model's ``forward``."""
    return set(inspect.signature(model.forward).parameters)


def modality(model: Any) -> str:
    """text, image, sound or series: what decides the sizes that the judge varies."""
    names = accepted(model)
    if names & {"input_ids", "returns_to_go"}:
        return "text"
    if model.main_input_name in ("input_values", "input_features"):
        return "sound"
    return "series" if "past_values" in names else "image"


def native_pixels(config: Any) -> tuple[int, int]:
    """Height and width that a configuration names, 64x64 where it names none.

    Of a detector with a windowed backbone three times the backbone's: its processor enlarges images to 800 pixels, and
    the backbone was trained at 224 to 384.
    """
    sections = {name: getattr(config, name, None) for name in ("vision_config", "backbone_config", "encoder")}
    for name, section in ({"": config} | sections).items():
        size = getattr(section, "image_size", getattr(section, "input_size", None))
        if size is not None:
            enlarged = 3 if name == "backbone_config" and hasattr(section, "window_size") else 1
            height, width = (size, size) if isinstance(size, int) else (size[0], size[1])
            return enlarged * height, enlarged * width
    return 64, 64


def longest(config: Any) -> int:
    """Tokens that a configuration's table of positions has, at most 256; those that dynamic NTK extends it to."""
    kind = getattr(config, "model_type", "")
    text = config.decoder if kind == "vision-encoder-decoder" else config.get_text_config()
    names: tuple[str, ...] = (
        "max_position_embeddings",
        "n_positions",
        "max_encoder_position_embeddings",
        "max_seq_len",
    )
    names = ("max_target_positions",) if kind == "whisper" else names
    sizes = [getattr(text, name) for name in names if isinstance(getattr(text, name, None), int)]
    rope: Mapping[str, Any] = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    factor = rope["factor"] if rope.get("rope_type") == "dynamic" else 1
    return int(min([*(size * factor for size in sizes if size > 0), 256]))


def mask(size: Size) -> np.ndarray:
    """Attention mask [B, T] with 1 at real tokens."""
    rows = np.array(size.rows or [size.tokens] * size.batch)[:, None]
    places = np.arange(size.tokens)[None]
    return (places < rows if size.side != "left" else places >= size.tokens - rows).astype(np.int64)


def sample(model: Any, size: Size, seed: int = 0) -> Arrays:
    """All inputs that the model may take at a size, seeded."""
    config, rng = model.config, np.random.default_rng(seed)
    names, arrays = accepted(model), Arrays()
    if "input_ids" in names:
        arrays |= _text(config.get_text_config(), size, rng)
    if "bbox" in names:
        corners = np.sort(rng.integers(0, 30, (size.batch, size.tokens, 2, 2)), axis=2)
        arrays["bbox"] = corners.reshape(size.batch, size.tokens, 4)
    if "pixel_values" in names:
        height, width = size.pixels if all(size.pixels) else native_pixels(config)
        channels = getattr(getattr(config, "vision_config", config), "num_channels", 3)
        arrays["pixel_values"] = rng.standard_normal((size.batch, channels, height, width))
        arrays["pixel_mask"] = np.ones((size.batch, height, width), np.int64)
    if "input_values" in names and hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
        arrays["input_values"] = rng.standard_normal((size.batch, config.max_length, config.num_mel_bins))
    elif "input_values" in names:
        arrays["input_values"] = rng.standard_normal((size.batch, size.sound))
        arrays["attention_mask"] = np.ones((size.batch, size.sound), np.int64)
    if "input_features" in names and config.model_type != "clap":
        arrays |= _features(config, size, rng)
    if "past_values" in names:
        channels = config.num_input_channels
        arrays["past_values"] = rng.standard_normal((size.batch, config.context_length, channels))
    if "returns_to_go" in names:
        arrays |= trajectory(config, size.batch, size.tokens, rng) | {"attention_mask": mask(size)}
    arrays |= further(config, size.batch, rng)
    return {name: value for name, value in arrays.items() if name in names}


def _text(config: Any, size: Size, rng: np.random.Generator) -> Arrays:
    shape = (size.batch, size.tokens)
    ids, attention = rng.integers(_FIRST_WORD, config.vocab_size, shape), mask(size)
    padding = getattr(config, "pad_token_id", None)
    ids = np.where(attention, ids, padding if isinstance(padding, int) and 0 <= padding < config.vocab_size else 0)
    arrays = {"input_ids": ids, "attention_mask": attention}
    kinds = getattr(config, "type_vocab_size", 0)
    if isinstance(kinds, int) and kinds > 1:
        arrays["token_type_ids"] = rng.integers(0, kinds, shape) * attention
    return arrays


def _features(config: Any, size: Size, rng: np.random.Generator) -> Arrays:
    """Spectrograms: [B, mel, 2 * positions] of Whisper, else [B, frames, mel]."""
    if config.model_type == "whisper":
        shape = (size.batch, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": rng.standard_normal(shape)}
    inner = getattr(config, "encoder_config", config)
    mel = getattr(inner, "feature_projection_input_dim", None) or inner.num_mel_bins
    frames = size.sound // 10
    features = rng.standard_normal((size.batch, frames, mel))
    return {"input_features": features, "attention_mask": np.ones((size.batch, frames), np.int64)}


def positions(attention: np.ndarray) -> np.ndarray:
    """Position ids as transformers' ``generate`` makes them of a mask [B, T]."""
    counted: np.ndarray = np.maximum(attention.cumsum(1) - 1, 0)
    return counted


def tensors(arrays: Mapping[str, np.ndarray], names: Sequence[str] | set[str], dtype: Any) -> dict[str, Any]:
    """The named arrays as tensors, floating point in ``dtype``."""
    import torch

    taken = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items() if name in names}
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in taken.items()}
