"""What transformers computes with a checkpoint in float64, by the kind of its model."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
#: of rotations that depend on the length: 33 tokens one by one across the 20 at which they change, and in parts, of
#: which the second begins before and ends behind
CALLS = ((18, 1, 1, 1, 1, 11), (12, 14, 1, 6))


@contextmanager
def wide(way: str | None) -> Iterator[None]:
    """``all``: whoever asks for float32, or for no type, gets float64; ``calls``: who calls ``Tensor.float``."""
    if way is None:
        yield
        return
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        if way == "calls":
            yield
            return
        torch.set_default_dtype(torch.float64)
        with mock.patch.object(torch, "float32", torch.float64):
            yield
        torch.set_default_dtype(torch.float32)


def load(target: Path, kind: Any, entry: dict[str, Any]) -> torch.nn.Module:
    """A fresh model in float64."""
    options = {"attn_implementation": entry["attention"]} if "attention" in entry else {}
    options |= {"dtype": torch.float64} if "stored" in entry else {}
    with wide(entry.get("wide") if entry["kind"] != "encoder" else None):
        model = kind.from_pretrained(target, **options).double().eval()
    if model.config.model_type == "mpt":
        # it reads alibi_bias_max from its configuration and never uses it
        biases = model.transformer.build_mpt_alibi_tensor
        most = model.config.attn_config.alibi_bias_max
        model.transformer.build_mpt_alibi_tensor = partial(biases, alibi_bias_max=most)
    return model


def encoder(target: Path, kind: Any, entry: dict[str, Any], given: Tensors) -> Tensors:
    """Hidden states (of an encoder-decoder the encoder's), and what a head or a pooler makes of them."""
    model, given = load(target, kind, entry), dict(given)
    config = model.config
    if "global_attention_mask" in given and not given["global_attention_mask"].any():
        del given["global_attention_mask"]  # so that a classifier marks its first token
    options = {"interpolate_pos_encoding": True} if config.model_type == "vit" and _square(config) else {}
    with torch.inference_mode(), wide(entry.get("wide")):
        out = model(**given, **options)
        states = out.get("encoder_last_hidden_state")
        alone = states is not None or model.base_model is model
        base = out if alone else model.base_model(**given, **options)
    found = {"last_hidden_state": base.last_hidden_state if states is None else states}
    for name in ("logits", "start_logits", "end_logits", "pooler_output"):
        if out.get(name) is not None:
            found[name] = out[name]
    assert all(value.isfinite().all() for value in found.values())
    return found


def _square(config: Any) -> bool:
    """Whether ViT can be asked to resize its positions, which it need not at the trained size."""
    return isinstance(config.image_size, int)


def full(model: torch.nn.Module, entry: dict[str, Any], given: Tensors) -> Tensors:
    """A decoder's full pass: logits, hidden states, and the first layer's keys and values."""
    given, mask = dict(given), given["attention_mask"]
    if entry.get("position_ids") and not mask.all() and "position_ids" in inspect.signature(model.forward).parameters:
        given["position_ids"] = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    with torch.inference_mode(), wide(entry.get("wide")):
        out = model(**given, use_cache=True, output_hidden_states=True)
    # GPT-BigCode's of 4.57.6 has room for cross attention
    layer = getattr(out.past_key_values, "self_attention_cache", out.past_key_values).layers[0]
    return {
        "logits": out.logits,
        "last_hidden_state": out.hidden_states[-1],
        "present.0.key": layer.keys,
        "present.0.value": layer.values,
    }


def decoder(target: Path, kind: Any, entry: dict[str, Any], given: Tensors) -> Tensors:
    """The batch at once, or row by row where the table says so.

    A length that rotations depend on is the batch's largest, for all rows; rows of padding are NaN in a float64 run of
    the one attention that computes Gemma 2's cap.
    """
    given = {name: given[name] for name in ("input_ids", "attention_mask")}
    if not entry.get("alone") or len(given["input_ids"]) == 1:
        return full(load(target, kind, entry), entry, given)
    ids, found = given["input_ids"], {}
    for row, real in enumerate(given["attention_mask"].bool()):
        alone = {name: value[row : row + 1, real] for name, value in given.items()}
        out = full(load(target, kind, entry), entry, alone)
        for key in ("logits", "last_hidden_state"):
            whole = found.setdefault(key, torch.zeros(*ids.shape, out[key].shape[-1], dtype=torch.float64))
            whole[row, real] = out[key][0]
    return found


def seq2seq(target: Path, kind: Any, entry: dict[str, Any], given: Tensors) -> Tensors:
    """Logits, the encoder's states, the first layer's keys and values of both attentions."""
    with torch.inference_mode(), wide(entry["wide"]):
        out = load(target, kind, entry)(**given, use_cache=True)
    kept = out.past_key_values
    pairs = {"decoder": kept.self_attention_cache.layers[0], "encoder": kept.cross_attention_cache.layers[0]}
    found = {"logits": out.logits, "last_hidden_state": out.encoder_last_hidden_state}
    for name, layer in pairs.items():
        found |= {f"present.0.{name}.key": layer.keys, f"present.0.{name}.value": layer.values}
    return found


def by_length(target: Path, kind: Any, entry: dict[str, Any], rng: np.random.Generator) -> Tensors:
    """More points of a rotation that depends on the length of a call:

    calls-18-1-1 ...   33 tokens in calls of so many: ``logits_in_calls``, and ``key_in_calls``, the first layer's
    batch-33-12        what a batch does to its shorter row: ``logits_in_batch``, of every row's first 12 tokens
    state-25           what a model remembers: ``logits_behind_33``, of 25 tokens, by one that has seen 33 before
    """
    found: Tensors = {}

    def drawn(point: str, length: int, rows: int = 1) -> Tensors:
        ids = torch.from_numpy(rng.integers(entry["low"], entry["settings"]["vocab_size"], (rows, length)))
        mask = torch.ones_like(ids)
        if rows > 1:
            ids[1, 12:] = mask[1, 12:] = 0
        given = {"input_ids": ids, "attention_mask": mask}
        found.update({f"{point}.{name}": value for name, value in given.items()})
        return given

    for calls in CALLS:
        point = "-".join(map(str, ("calls", *calls)))
        ids, model, cache, parts = drawn(point, sum(calls))["input_ids"], load(target, kind, entry), None, []
        for end, new in zip(np.cumsum(calls), calls, strict=True):
            with torch.inference_mode():
                out = model(input_ids=ids[:, end - new : end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
        found |= {f"{point}.logits_in_calls": torch.cat(parts, 1), f"{point}.key_in_calls": cache.layers[0].keys}
    both = drawn("batch-33-12", 33, rows=2)
    found["batch-33-12.logits_in_batch"] = full(load(target, kind, entry), entry, both)["logits"][:, :12]
    model = load(target, kind, entry)
    full(model, entry, {name: value[:1] for name, value in both.items()})
    found["state-25.logits_behind_33"] = full(model, entry, drawn("state-25", 25))["logits"]
    return found


RUNS: dict[str, Callable[[Path, Any, dict[str, Any], Tensors], Tensors]] = {
    "encoder": encoder,
    "decoder": decoder,
    "seq2seq": seq2seq,
}
