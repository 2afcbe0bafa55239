"""Writes the audio checkpoints of tests/golden: WavLM, Wav2Vec2-Conformer, Wav2Vec2-BERT.

Padding is on the right only, and holds noise. All frames are stored, padded ones too: what stands there is the same
here and there. A point whose lengths are in samples is named by them. Rotations and sinusoids come from tables that
transformers computes in float32, whatever the model's precision.
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
    "intermediate_size": 17,
    "vocab_size": 13,
    "output_hidden_size": None,
}
SAMPLES: dict[str, Any] = {
    "conv_dim": [6, 7, 9],
    "conv_kernel": [5, 3, 2],
    "conv_stride": [3, 2, 1],
    "num_conv_pos_embedding_groups": 4,
}
#: the samples of an input, and of each of its rows the real ones: 1, 2, 11, 17, 43 frames
IN_SAMPLES = {17: [17], 25: [25], 115: [115], 116: [116, 77, 22], 271: [271, 76, 19]}
IN_FRAMES = {1: [1], 2: [2], 17: [17], 18: [18, 7, 1], 43: [43, 20]}
#: the directory's name: class, saved head, settings
PLAN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "wavlm-group": (
        "WavLM",
        "Model",
        {"feat_extract_norm": "group", "num_conv_pos_embeddings": 6, "num_buckets": 12, "max_bucket_distance": 15},
    ),
    "wavlm-layer-forctc": (
        "WavLM",
        "ForCTC",
        {
            "feat_extract_norm": "layer",
            "conv_bias": True,
            "do_stable_layer_norm": True,
            "num_conv_pos_embeddings": 7,
            "num_buckets": 8,
            "max_bucket_distance": 9,
            "layer_norm_eps": 1e-4,
        },
    ),
    "wav2vec2-conformer-relative-forctc": (
        "Wav2Vec2Conformer",
        "ForCTC",
        {
            "feat_extract_norm": "layer",
            "conv_bias": True,
            "position_embeddings_type": "relative",
            "conv_depthwise_kernel_size": 5,
            "hidden_act": "swish",
            "layer_norm_eps": 1e-3,
            "num_conv_pos_embeddings": 4,
        },
    ),
    "wav2vec2-conformer-rotary": (
        "Wav2Vec2Conformer",
        "Model",
        {
            "feat_extract_norm": "group",
            "position_embeddings_type": "rotary",
            "rotary_embedding_base": 300,
            "conv_depthwise_kernel_size": 3,
            "num_conv_pos_embeddings": 4,
        },
    ),
    "wav2vec2-bert-relative_key-forctc": (
        "Wav2Vec2Bert",
        "ForCTC",
        {"left_max_position_embeddings": 9, "right_max_position_embeddings": 3, "layer_norm_eps": 1e-3},
    ),
    "wav2vec2-bert-relative": ("Wav2Vec2Bert", "Model", {"position_embeddings_type": "relative"}),
    "wav2vec2-bert-rotary": ("Wav2Vec2Bert", "Model", {"position_embeddings_type": "rotary", "hidden_act": "gelu"}),
}


def settings_of(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """The sizes that fit a class, and what is given."""
    if kind == "Wav2Vec2Bert":
        return SIZES | {"feature_projection_input_dim": 11, "conv_depthwise_kernel_size": 5} | given
    return SIZES | SAMPLES | given


def randomise_norms(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """What batch normalisation remembers is no parameter."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.from_numpy(0.3 * rng.standard_normal(buffer.shape)))
        elif name.endswith("running_var"):
            buffer.copy_(torch.from_numpy(0.5 + rng.random(buffer.shape)))


def inputs(model: torch.nn.Module, length: int, rows: list[int], rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Multiples of 1/64, in padded places too, and the mask."""
    frames = model.main_input_name == "input_features"
    shape = (len(rows), length, model.config.feature_projection_input_dim) if frames else (len(rows), length)
    values = np.round(64 * rng.standard_normal(shape)) / 64
    mask = np.arange(length) < np.array(rows)[:, None]
    return {
        model.main_input_name: torch.from_numpy(values),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
    }


def run(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Hidden states and, of a model with a head, logits."""
    with torch.inference_mode():
        found = {"last_hidden_state": model.base_model(**given).last_hidden_state}
        if model.base_model is not model:
            found["logits"] = model(**given).logits
    return found


def without_positions(model: torch.nn.Module) -> None:
    """Take the positions out of attention: no bias, no distances, rotations by nothing."""
    for name, module in model.named_modules():
        for table in ("rel_attn_embed", "distance_embedding", "linear_pos"):
            if hasattr(module, table):
                getattr(module, table).weight.data.zero_()
        if name.endswith("embed_positions") and hasattr(module, "inv_freq"):
            module.inv_freq.zero_()


def make(target: Path, kind: str, saved: str, given: dict[str, Any], seed: int) -> None:
    """One checkpoint and what it gives."""
    rng = np.random.default_rng(seed)
    config = getattr(transformers, f"{kind}Config")(**settings_of(kind, given))
    model = getattr(transformers, f"{kind}{saved}")(config).eval()
    randomise(model, rng)
    randomise_norms(model, rng)
    model.save_pretrained(target, safe_serialization=True)
    model = type(model).from_pretrained(target).double().eval()
    bare = type(model).from_pretrained(target).double().eval()
    without_positions(bare)
    tensors = {}
    moved = 0.0
    for length, rows in (IN_FRAMES if kind == "Wav2Vec2Bert" else IN_SAMPLES).items():
        found = inputs(model, length, rows, rng)
        point = f"{'none' if len(rows) == 1 else 'right'}-{length}"
        outputs = run(model, found)
        state = outputs["last_hidden_state"]
        moved = max(moved, float((run(bare, found)["last_hidden_state"] - state).abs().max() / state.abs().max()))
        for name, value in found.items():
            tensors[f"{point}.{name}"] = value.to(torch.uint8) if name == "attention_mask" else value.float()
        tensors |= {f"{point}.{name}": value.float().contiguous() for name, value in outputs.items()}
    assert moved > 0.05, f"positions do not matter: {moved}"
    save_file(tensors, target / "expected.safetensors")


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {
        name: partial(make, kind=kind, saved=saved, given=given, seed=seed)
        for seed, (name, (kind, saved, given)) in enumerate(PLAN.items(), start=30_400)
    }
