"""Writes tests/golden for decoders of the GPT kind: learned, sinusoidal and rotated positions, and ALiBi.

As `llama`: weights in bfloat16, outputs of a float64 run, padded tokens zero. Padded rows are run with the position ids
that transformers' ``generate`` gives, where a model takes any; the others with what a model does by itself. What
transformers computes in float32 whatever it is asked for (angles, GPT-J's scores) is computed in float64 here.
GPT-2's division of scores by the layer's number is done with ``attn_implementation=eager`` only. MPT's
``alibi_bias_max`` is read from its configuration and never used by transformers; here its function is given it.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from common import Checkpoints, drawn_rows, outputs, randomise
from llama import POINTS, given
from safetensors.torch import save_file

IDS = {"vocab_size": 23, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = IDS | {"n_embd": 20, "n_layer": 2, "n_head": 5, "n_inner": 13, "n_positions": 33}
NEOX = IDS | {
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 13,
    "rotary_pct": 0.7,
    "rotary_emb_base": 60,
}
OPT = IDS | {
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "ffn_dim": 13,
    "max_position_embeddings": 33,
    "word_embed_proj_dim": 20,
}
FALCON = IDS | {"num_hidden_layers": 2, "ffn_hidden_size": 13, "rope_theta": 60.0}
#: name of the directory: the class, its configuration's class, its settings
PLAN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2-lmheadmodel": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2-scaled-lmheadmodel": (
        "GPT2LMHeadModel",
        "GPT2Config",
        GPT2
        | {
            "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": False,
            "tie_word_embeddings": False,
            "activation_function": "relu",
            "attn_implementation": "eager",
        },
    ),
    "bloom-forcausallm": ("BloomForCausalLM", "BloomConfig", IDS | {"hidden_size": 20, "n_layer": 2, "n_head": 5}),
    "gpt_neox-forcausallm": ("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX),
    "gpt_neox-sequential-forcausallm": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        NEOX
        | {
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
    ),
    "gptj-forcausallm": (
        "GPTJForCausalLM",
        "GPTJConfig",
        GPT2 | {"n_embd": 30, "rotary_dim": 4, "n_positions": 40},
    ),
    "opt-forcausallm": ("OPTForCausalLM", "OPTConfig", OPT),
    "opt-post-forcausallm": (
        "OPTForCausalLM",
        "OPTConfig",
        OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 12, "enable_bias": False},
    ),
    "falcon-forcausallm": (
        "FalconForCausalLM",
        "FalconConfig",
        FALCON
        | {
            "hidden_size": 24,
            "num_attention_heads": 6,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "bias": True,
        },
    ),
    "falcon-old-forcausallm": (
        "FalconForCausalLM",
        "FalconConfig",
        FALCON | {"hidden_size": 20, "num_attention_heads": 5},
    ),
    "falcon-alibi-forcausallm": (
        "FalconForCausalLM",
        "FalconConfig",
        FALCON
        | {
            "hidden_size": 20,
            "num_attention_heads": 5,
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
        },
    ),
    "mpt-forcausallm": (
        "MptForCausalLM",
        "MptConfig",
        IDS
        | {
            "d_model": 20,
            "n_layers": 2,
            "n_heads": 5,
            "max_seq_len": 64,
            "attn_config": {"alibi_bias_max": 6, "softmax_scale": 0.3},
        },
    ),
    "xglm-forcausallm": (
        "XGLMForCausalLM",
        "XGLMConfig",
        IDS | {"d_model": 20, "num_layers": 2, "attention_heads": 5, "ffn_dim": 13, "max_position_embeddings": 40},
    ),
    "gpt_bigcode-forcausallm": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT2),
    "gpt_neo-forcausallm": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        IDS
        | {
            "hidden_size": 20,
            "num_layers": 2,
            "num_heads": 5,
            "intermediate_size": 13,
            "max_position_embeddings": 33,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 7,
        },
    ),
}
#: the second and third of a family: one point without padding, and padding on the left
SECOND = ("gpt2-scaled", "gpt_neox-sequential", "opt-post", "falcon-old", "falcon-alibi")


@contextmanager
def wide() -> Iterator[None]:
    """Whoever asks for float32, or for no type, gets float64."""
    torch.set_default_dtype(torch.float64)
    method = mock.patch.object(torch.Tensor, "float", torch.Tensor.double)
    with method, mock.patch.object(torch, "float32", torch.float64):
        yield
    torch.set_default_dtype(torch.float32)


def run(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """A full pass: logits, hidden states, and the first layer's keys and values."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    if not mask.all() and "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    with torch.inference_mode(), wide():
        out = model(**inputs, use_cache=True, output_hidden_states=True)
    # GPT-BigCode's of 4.57.6 has room for cross attention
    layer = getattr(out.past_key_values, "self_attention_cache", out.past_key_values).layers[0]
    return {
        "logits": out.logits,
        "last_hidden_state": out.hidden_states[-1],
        "present.0.key": layer.keys,
        "present.0.value": layer.values,
    }


def make(target: Path, name: str, seed: int) -> None:
    """One checkpoint and what it gives."""
    rng = np.random.default_rng(seed)
    stem, configuration, settings = PLAN[name]
    config = getattr(transformers, configuration)(**settings)
    kind = getattr(transformers, stem)
    model = kind(config).eval()
    randomise(model, rng)
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(0.7 if config.hidden_size > 20 else 0.9)  # scores grow with a head, and rounding too
        if key.endswith("embed_tokens.weight") and stem.startswith("XGLM"):
            parameter.data.mul_(0.3)  # they are scaled, and positions are to show beside them
    model.to(torch.bfloat16).save_pretrained(target, safe_serialization=True)
    with wide():
        model = kind.from_pretrained(
            target, dtype=torch.float64, attn_implementation=settings.get("attn_implementation")
        ).eval()
    if stem.startswith("Mpt"):
        biases = model.transformer.build_mpt_alibi_tensor
        model.transformer.build_mpt_alibi_tensor = partial(biases, alibi_bias_max=config.attn_config.alibi_bias_max)
    tensors = {}
    second = name.startswith(SECOND)
    for point, (rows, side) in POINTS.items():
        ids, mask = drawn_rows(rng, rows, side, config.vocab_size)
        out = run(model, ids, mask)
        if ids.shape[1] == 33:
            check(model, ids, out["logits"])
        if second and point != "none-17" and side != "left":
            continue
        keys = ["logits"]
        keys += ["last_hidden_state"] if side == "left" or (point == "none-33" and not second) else []
        if point == "none-17" and not ours_is_narrower(config):
            keys += ["present.0.key", "present.0.value"]
        tensors |= given(point, ids, mask) | outputs(point, out, keys, mask)
    save_file(tensors, target / "expected.safetensors")
    target.joinpath("generation_config.json").unlink(missing_ok=True)


def ours_is_narrower(config: Any) -> bool:
    """Falcon's new architecture keeps the keys of every head there, those of every group here."""
    return bool(getattr(config, "new_decoder_architecture", False))


def check(model: torch.nn.Module, ids: torch.Tensor, logits: torch.Tensor) -> None:
    """The last token's answer depends on the order of those before it."""
    swapped = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], 1)
    moved = run(model, swapped, torch.ones_like(ids))["logits"][:, -1]
    assert (moved - logits[:, -1]).abs().max() > 0.05 * logits.abs().max(), "positions do not matter"


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {name: partial(make, name=name, seed=seed) for seed, name in enumerate(PLAN, start=32_000)}
