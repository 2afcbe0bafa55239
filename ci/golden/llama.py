"""Writes tests/golden for decoders with rotations: the heirs of Llama, Gemma, Phi, StableLM, OLMo and StarCoder.

Weights are stored in bfloat16, which is what such checkpoints come in; the outputs are those of a float64 run with
them. Padded tokens are zero in what is stored: they attend to other tokens than ours, by design. Rotations that depend
on the length are run row by row with a fresh model: transformers takes a batch's largest length for all rows, and
remembers it. So is Gemma 2, whose rows of padding are NaN in a float64 run of the one attention that computes its cap.

Rotations that depend on the length have more points:

    calls-18-1-1 ...        33 tokens in calls of so many: ``logits_in_calls``, and ``key_in_calls``, the first layer's
    batch-33-12             what a batch does to its shorter row: ``logits_in_batch``, of every row's first 12 tokens
    state-25                what a model remembers: ``logits_behind_33``, of 25 tokens, by one that has seen 33 before
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import Checkpoints, drawn_rows, no_init_weights, outputs, randomise
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 23,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 13,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 60.0,
}
#: of families whose heads are hidden / heads wide
WHOLE = {name: value for name, value in SIZES.items() if name != "head_dim"} | {"hidden_size": 24}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}
GEMMA = {"num_attention_heads": 6, "query_pre_attn_scalar": 11, "sliding_window": 7}
#: name of the directory: the stem of its classes, its settings
PLAN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-forcausallm": ("Llama", SIZES),
    "llama-llama3-forcausallm": (
        "Llama",
        WHOLE | {"rope_scaling": LLAMA3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral-forcausallm": ("Mistral", SIZES | {"sliding_window": 7}),
    "qwen2-forcausallm": (
        "Qwen2",
        WHOLE
        | {
            "num_attention_heads": 4,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-forcausallm": ("Qwen3", SIZES),
    "phi3-forcausallm": ("Phi3", WHOLE | {"sliding_window": 12}),
    "phi3-longrope-forcausallm": (
        "Phi3",
        WHOLE
        | {
            "num_attention_heads": 4,
            "partial_rotary_factor": 0.7,
            "rope_scaling": LONGROPE,
            "max_position_embeddings": 80,
            "original_max_position_embeddings": 20,
        },
    ),
    "smollm3-forcausallm": ("SmolLM3", WHOLE | {"no_rope_layer_interval": 2}),
    "gemma-forcausallm": ("Gemma", SIZES),
    "gemma2-forcausallm": ("Gemma2", SIZES | GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3-forcausallm": (
        "Gemma3",
        SIZES
        | GEMMA
        | {
            "rope_theta": 900.0,
            "rope_local_base_freq": 50.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "sliding_window_pattern": 2,
        },
    ),
    "phi-forcausallm": ("Phi", WHOLE | {"qk_layernorm": True}),
    "stablelm-forcausallm": ("StableLm", WHOLE | {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "stablelm-parallel-forcausallm": (
        "StableLm",
        # of four channels, some head's would be so alike that normalising them makes much of rounding
        WHOLE
        | {
            "num_attention_heads": 4,
            "partial_rotary_factor": 0.7,
            "qk_layernorm": True,
            "use_parallel_residual": True,
        },
    ),
    "llama-dynamic-forcausallm": (
        "Llama",
        WHOLE
        | {
            "num_attention_heads": 4,
            "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
            "max_position_embeddings": 20,
        },
    ),
    "granite-forcausallm": (
        "Granite",
        SIZES
        | {
            "embedding_multiplier": 1.7,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2-forcausallm": ("Olmo2", SIZES),
    "starcoder2-forcausallm": ("Starcoder2", WHOLE | {"sliding_window": 7}),
}
#: whose rotations depend on the length of a call, and change at 20 tokens
BY_LENGTH = ("phi3-longrope-forcausallm", "llama-dynamic-forcausallm")
#: 33 tokens: one by one across the 20, and in parts, of which the second begins before and ends behind
CALLS = ((18, 1, 1, 1, 1, 11), (12, 14, 1, 6))
#: name to real tokens per row and side of the padding
POINTS = {f"none-{length}": ([length], "right") for length in (1, 2, 17, 33)} | {
    "left-11": ([11, 6, 1], "left"),
    "right-5": ([5, 3, 1], "right"),
}


def run(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """A full pass: logits, hidden states, and the first layer's keys and values."""
    with torch.inference_mode():
        out = model(input_ids=ids, attention_mask=mask, use_cache=True, output_hidden_states=True)
    layer = out.past_key_values.layers[0]
    return {
        "logits": out.logits,
        "last_hidden_state": out.hidden_states[-1],
        "present.0.key": layer.keys,
        "present.0.value": layer.values,
    }


def row_by_row(target: Path, kind: Any, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every row alone, without its padding, by a fresh model; padded tokens are zero."""
    found: dict[str, torch.Tensor] = {}
    for row, real in enumerate(mask.bool()):
        out = run(load(target, kind), ids[row : row + 1, real], mask[row : row + 1, real])
        for key in ("logits", "last_hidden_state"):
            whole = found.setdefault(key, torch.zeros(*ids.shape, out[key].shape[-1], dtype=torch.float64))
            whole[row, real] = out[key][0]
        found |= {key: value for key, value in out.items() if len(mask) == 1 and key.startswith("present")}
    return found


def load(target: Path, kind: Any) -> torch.nn.Module:
    """Gemma 2 in the attention that computes its cap on scores: ``sdpa``, the default, leaves it out without a word."""
    way = "eager" if kind.__name__.startswith("Gemma2") else "sdpa"
    return kind.from_pretrained(target, dtype=torch.float64, attn_implementation=way).eval()


def by_calls(target: Path, kind: Any, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The points of a rotation that depends on the length."""
    found = {}
    for calls in CALLS:
        ids, model, cache, parts = drawn(rng, sum(calls)), load(target, kind), None, []
        for end, new in zip(np.cumsum(calls), calls, strict=True):
            with torch.inference_mode():
                out = model(input_ids=ids[:, end - new : end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
        point = "-".join(map(str, ("calls", *calls)))
        found |= given(point, ids, torch.ones_like(ids)) | {f"{point}.logits_in_calls": torch.cat(parts, 1)}
        found[f"{point}.key_in_calls"] = cache.layers[0].keys
    ids = drawn(rng, 33, rows=2)
    mask = torch.ones_like(ids)
    mask[1, 12:] = ids[1, 12:] = 0
    both = run(load(target, kind), ids, mask)["logits"]
    found |= given("batch-33-12", ids, mask) | {"batch-33-12.logits_in_batch": both[:, :12]}
    model = load(target, kind)
    run(model, ids[:1], mask[:1])
    ids = drawn(rng, 25)
    found |= given("state-25", ids, torch.ones_like(ids))
    found["state-25.logits_behind_33"] = run(model, ids, torch.ones_like(ids))["logits"]
    return {name: value if "input" in name or "mask" in name else value.float() for name, value in found.items()}


def drawn(rng: np.random.Generator, length: int, rows: int = 1) -> torch.Tensor:
    return torch.from_numpy(rng.integers(3, SIZES["vocab_size"], (rows, length)))


def given(point: str, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{point}.input_ids": ids.to(torch.uint8), f"{point}.attention_mask": mask.to(torch.uint8)}


def make(target: Path, name: str, seed: int, over: dict[str, Any] | None = None) -> None:
    """One checkpoint and what it gives. ``over``: settings beside those of `PLAN`."""
    rng = np.random.default_rng(seed)
    stem, settings = PLAN[name]
    settings = settings | (over or {})
    config = getattr(transformers, "Gemma3TextConfig" if stem == "Gemma3" else f"{stem}Config")(**settings)
    kind = getattr(transformers, f"{stem}ForCausalLM")
    with no_init_weights():  # StableLM's initialisation fails on norms without a bias
        model = kind(config).eval()
    model.tie_weights()
    randomise(model, rng)
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(0.75)  # so that rounding grows little from layer to layer
        elif stem.startswith("Gemma") and "norm" in key:
            parameter.data.sub_(1)  # what is stored is the difference from 1
    model.to(torch.bfloat16).save_pretrained(target, safe_serialization=True)
    tensors = {}
    for point, (rows, side) in POINTS.items():
        ids, mask = drawn_rows(rng, rows, side, config.vocab_size)
        length = ids.shape[1]
        alone = name in BY_LENGTH or stem == "Gemma2"
        out = row_by_row(target, kind, ids, mask) if alone else run(load(target, kind), ids, mask)
        if length == 33:
            check(load(target, kind), ids, out["logits"])
        keys = ["logits"]
        keys += ["last_hidden_state"] if point == "none-17" else []
        if point == "none-17" and out["present.0.key"].shape[2] == length:  # a layer with a window keeps fewer there
            keys += ["present.0.key", "present.0.value"]
        tensors |= given(point, ids, mask) | outputs(point, out, keys, mask)
    if name in BY_LENGTH:
        tensors |= {key: value.contiguous() for key, value in by_calls(target, kind, rng).items()}
    save_file(tensors, target / "expected.safetensors")
    target.joinpath("generation_config.json").unlink(missing_ok=True)


def check(model: torch.nn.Module, ids: torch.Tensor, logits: torch.Tensor) -> None:
    """The last token's answer depends on the order of those before it."""
    swapped = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)
    moved = run(model, swapped, torch.ones_like(ids))["logits"][:, -1]
    assert (moved - logits[:, -1]).abs().max() > 0.05 * logits.abs().max(), "positions do not matter"


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {name: partial(make, name=name, seed=seed) for seed, name in enumerate(PLAN, start=31_000)}
