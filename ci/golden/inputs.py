"""Draws the inputs of a point, by what a model takes: token ids, pixels, audio, and a decoder's tokens beside them."""

from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]


def draw(
    model: torch.nn.Module, entry: dict[str, Any], point: str, rows: Any, rng: np.random.Generator
) -> dict[str, torch.Tensor]:
    """``rows``: how many images, or the real tokens, samples or frames of every row."""
    config, name = model.config, model.main_input_name
    found: Arrays = {}
    if name == "pixel_values":
        height, width = map(int, point.split("x"))
        found[name] = rng.integers(-128, 129, (rows, config.num_channels, height, width)) / 64
        return as_tensors(found)
    side, length, *after = point.split("-")
    if after:
        found["decoder_input_ids"] = rng.integers(6, config.vocab_size - 1, (len(rows), int(after[0])))
        found["decoder_input_ids"][:, 0] = config.decoder_start_token_id
    slots, counts = np.arange(int(length))[None], np.array(rows)[:, None]
    real = slots >= int(length) - counts if side == "left" else slots < counts
    if config.model_type == "whisper":
        shape = len(rows), config.num_mel_bins, 2 * config.max_source_positions
        found[name] = rng.integers(-96, 97, shape) / 64
    elif name == "input_ids":
        found |= tokens(model, entry, side, real, rng)
    else:
        # multiples of 1/64, in padded places too
        features = (config.feature_projection_input_dim,) if name == "input_features" else ()
        found |= {name: np.round(64 * rng.standard_normal((*real.shape, *features))) / 64, "attention_mask": real}
    return as_tensors(found)


def as_tensors(found: Arrays) -> dict[str, torch.Tensor]:
    """Real numbers in float64, all others as int64."""
    return {
        name: torch.from_numpy(value if value.dtype == np.float64 else value.astype(np.int64))
        for name, value in found.items()
    }


def tokens(
    model: torch.nn.Module, entry: dict[str, Any], side: str, real: np.ndarray, rng: np.random.Generator
) -> Arrays:
    """Ids and their mask; types, which change somewhere in every row; Longformer's marks."""
    config = model.config
    # an encoder-decoder's last id may be its padding
    ids = (
        code_points(real, rng)
        if config.model_type == "canine"
        else rng.integers(entry["low"], config.vocab_size - (entry["kind"] == "seq2seq"), real.shape)
    )
    if config.model_type == "longformer" and "QuestionAnswering" in type(model).__name__:
        for row, keep in zip(ids, real, strict=True):
            first, last = np.flatnonzero(keep)[[0, -1]]
            row[[first + 2, first + 3, last]] = config.sep_token_id
    if config.is_encoder_decoder and "SequenceClassification" in type(model).__name__:
        # a classifier reads its answer at the end token
        for row, keep in zip(ids, real, strict=True):
            row[np.flatnonzero(keep)[-1]] = config.eos_token_id
    ids = np.where(real, ids, config.pad_token_id)
    if entry.get("unmasked_padding") and real.shape == (1, 17):
        ids[0, 6] = config.pad_token_id
    if config.model_type == "esm" and not real.all():
        # 4.57.6 divides the mask tokens by the padded length, ESM itself by the real one: no such tokens there
        ids[ids == config.mask_token_id] = config.mask_token_id + 1
    found = {"input_ids": ids, "attention_mask": real}
    kinds, padding = (3, 3) if config.model_type == "xlnet" else (getattr(config, "type_vocab_size", 1), 0)
    if kinds > 1:
        found["token_type_ids"] = np.where(real, rng.integers(0, kinds, real.shape), padding)
    if config.model_type == "longformer":
        found["global_attention_mask"] = marks(real, side in ("marked", "right"), rng)
    return found


def code_points(real: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Letters, the code points of the special tokens, and all of Unicode."""
    kinds = [rng.integers(97, 123, real.shape), rng.integers(0xE000, 0xE005, real.shape)]
    kinds.append(rng.integers(1, 0x110000, real.shape))
    return np.choose(rng.integers(0, 3, real.shape), kinds)


def marks(real: np.ndarray, some: bool, rng: np.random.Generator) -> np.ndarray:
    """Real tokens with global attention, in every row at least one, or none at all."""
    flags = real & (rng.random(real.shape) < 0.25) & some
    for row, keep in zip(flags, real, strict=True):
        row[rng.choice(np.flatnonzero(keep))] |= some
    return flags
