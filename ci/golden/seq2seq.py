"""Writes tests/golden for encoder-decoders: T5, mT5, UMT5, BART, mBART, Marian, Whisper.

As `gpt`: weights in bfloat16, outputs of a float64 run, also where transformers asks for float32. Points are called
``<padding>-<encoder's tokens>-<decoder's tokens>``. Each is run in one call and, to be sure, token by token with
transformers' own cache. ``last_hidden_state`` is the encoder's, zero at padded tokens. BART, mBART and Marian count
positions by place, so that they are padded on the right only. generation_config.json stays: it says how decoders start
and end.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import Checkpoints, drawn_rows, outputs, randomise
from gpt import wide
from safetensors.torch import save_file
from transformers.modeling_outputs import BaseModelOutput

T5 = {
    "vocab_size": 29,
    "d_model": 20,
    "d_kv": 3,
    "d_ff": 17,
    "num_layers": 1,
    "num_decoder_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": 29,
    "d_model": 20,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 13,
    "max_position_embeddings": 34,
}
MARIAN = BART | {
    "d_model": 18,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "max_position_embeddings": 40,
    "activation_function": "swish",
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "pad_token_id": 28,
    "decoder_start_token_id": 28,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "bad_words_ids": [[28]],
}
WHISPER = {
    "vocab_size": 29,
    "num_mel_bins": 7,
    "d_model": 20,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 13,
    "max_source_positions": 11,
    "max_target_positions": 34,
    "pad_token_id": 2,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "suppress_tokens": [4],
    "begin_suppress_tokens": [2, 5],
}
#: name of the directory: the class, its configuration's class, its settings
PLAN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5-forconditionalgeneration": ("T5ForConditionalGeneration", "T5Config", T5),
    "t5-gated-forconditionalgeneration": (
        "T5ForConditionalGeneration",
        "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5-forconditionalgeneration": (
        "MT5ForConditionalGeneration",
        "MT5Config",
        T5 | {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1},
    ),
    "umt5-forconditionalgeneration": (
        "UMT5ForConditionalGeneration",
        "UMT5Config",
        T5 | {"feed_forward_proj": "gated-gelu"},
    ),
    "bart-forconditionalgeneration": ("BartForConditionalGeneration", "BartConfig", BART),
    "marian-mtmodel": ("MarianMTModel", "MarianConfig", MARIAN),
    "whisper-forconditionalgeneration": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER),
    "marian-unshared-mtmodel": (
        "MarianMTModel",
        "MarianConfig",
        MARIAN | {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    ),
    "mbart-forconditionalgeneration": (
        "MBartForConditionalGeneration",
        "MBartConfig",
        BART | {"scale_embedding": True, "decoder_start_token_id": 2, "forced_bos_token_id": 7},
    ),
}
#: point to the encoder's real tokens in each row, the decoder's tokens, the side of the padding
POINTS: dict[str, tuple[list[int], int, str]] = {
    "none-9-1": ([9], 1, "right"),
    "none-1-2": ([1], 2, "right"),
    "none-33-17": ([33], 17, "right"),
    "none-6-33": ([6], 33, "right"),
    "right-17-5": ([17, 9, 1], 5, "right"),
    "left-17-5": ([17, 9, 1], 5, "left"),
}
#: the point of which caches are stored
CACHED = "none-33-17"


def inputs(config: Any, rows: list[int], after: int, side: str, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The encoder's tokens and their mask, or features; the decoder's tokens, which begin as the model does."""
    decoder_ids = rng.integers(6, config.vocab_size - 1, (len(rows), after))
    decoder_ids[:, 0] = config.decoder_start_token_id
    tensors = {"decoder_input_ids": torch.from_numpy(decoder_ids)}
    if config.model_type == "whisper":
        shape = len(rows), config.num_mel_bins, 2 * config.max_source_positions
        tensors["input_features"] = torch.from_numpy((rng.integers(-96, 97, shape) / 64).astype(np.float32))
    else:
        ids, mask = drawn_rows(rng, rows, side, config.vocab_size - 1, config.pad_token_id)
        return tensors | {"input_ids": ids, "attention_mask": mask}
    return tensors


def run(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A full pass: logits, the encoder's states, the first layer's keys and values of both attentions."""
    real = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
    with torch.inference_mode(), wide():
        out = model(**real, use_cache=True)
    kept = out.past_key_values
    pairs = {"decoder": kept.self_attention_cache.layers[0], "encoder": kept.cross_attention_cache.layers[0]}
    found = {"logits": out.logits, "last_hidden_state": out.encoder_last_hidden_state}
    for name, layer in pairs.items():
        found |= {f"present.0.{name}.key": layer.keys, f"present.0.{name}.value": layer.values}
    return found


def check(model: torch.nn.Module, given: dict[str, torch.Tensor], out: dict[str, torch.Tensor]) -> None:
    """Token by token it gives the same."""
    scale, past, parts = out["logits"].abs().max(), None, []
    ids = given["decoder_input_ids"]
    rest = {"attention_mask": given["attention_mask"]} if "attention_mask" in given else {}
    for step in range(ids.shape[1]):
        states = BaseModelOutput(last_hidden_state=out["last_hidden_state"])
        with torch.inference_mode(), wide():
            one = model(
                encoder_outputs=states,
                decoder_input_ids=ids[:, step : step + 1],
                past_key_values=past,
                use_cache=True,
                **rest,
            )
        past = one.past_key_values
        parts.append(one.logits)
    assert (torch.cat(parts, 1) - out["logits"]).abs().max() < 1e-10 * scale, "calls differ"


def moved(model: torch.nn.Module, given: dict[str, torch.Tensor], out: dict[str, torch.Tensor]) -> tuple[float, float]:
    """How much the order of the decoder's and of the encoder's tokens changes the last answer, of the scale."""
    ids = given["decoder_input_ids"]
    swapped = torch.cat([ids[:, :1], ids[:, 1:-1].flip(1), ids[:, -1:]], 1)
    name = "input_ids" if "input_ids" in given else "input_features"
    answers = [
        run(model, given | new)["logits"] for new in ({"decoder_input_ids": swapped}, {name: given[name].flip(-1)})
    ]
    scale = out["logits"].abs().max()
    after, before = (float((answer - out["logits"])[:, -1].abs().max() / scale) for answer in answers)
    return after, before


def rescale(model: torch.nn.Module, config: Any) -> None:
    """Weights at which attention and positions show, and rounding does not."""
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1 and parameter.requires_grad:
            parameter.data.mul_(0.8)  # scores without a scale grow, and rounding with them
        if key.endswith("relative_attention_bias.weight"):
            parameter.data.mul_(5)  # so that they show beside scores without a scale
        if key.endswith("proj.weight"):
            parameter.data.mul_(2)  # so that attention is more than an average, and shows
        if key.endswith(("shared.weight", "embed_tokens.weight")):
            parameter.data.mul_(1.0 if getattr(config, "scale_embedding", False) else 1.5)


def make(target: Path, name: str, seed: int) -> None:
    """One checkpoint and what it gives."""
    rng = np.random.default_rng(seed)
    stem, configuration, settings = PLAN[name]
    config = getattr(transformers, configuration)(**settings)
    kind = getattr(transformers, stem)
    model = kind(config).eval()
    randomise(model, rng)
    rescale(model, config)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias = torch.from_numpy(rng.standard_normal((1, config.vocab_size), dtype=np.float32))
    model.to(torch.bfloat16).save_pretrained(target, safe_serialization=True)
    with wide():
        model = kind.from_pretrained(target, dtype=torch.float64).double().eval()
    by_place = config.model_type in ("bart", "marian", "mbart")
    found: list[tuple[float, float]] = []
    tensors: dict[str, torch.Tensor] = {}
    for point, (rows, after, side) in POINTS.items():
        if side == "left" and (by_place or config.model_type == "whisper"):
            continue
        given = inputs(config, rows, after, side, rng)
        out = run(model, given)
        check(model, given, out)
        if "attention_mask" in given:
            out["last_hidden_state"] = out["last_hidden_state"] * given["attention_mask"][..., None]
        if side == "right" and len(rows) == 1:
            found.append(moved(model, given, out))
        keys = ["logits"]
        if len(rows) > 1 or point == CACHED:
            keys.append("last_hidden_state")
        if point == CACHED:
            keys += [key for key in out if key.startswith("present")]
        for known, value in given.items():
            tensors[f"{point}.{known}"] = value if value.is_floating_point() else value.to(torch.uint8)
        tensors |= outputs(point, out, keys)
    assert min(map(max, zip(*found, strict=True))) > 0.05, f"positions do not matter: {found}"
    save_file(tensors, target / "expected.safetensors")


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {name: partial(make, name=name, seed=seed) for seed, name in enumerate(PLAN, start=32_300)}
