"""Writes the checkpoints of tests/golden whose attention goes in blocks: Longformer and Canine.

Code points are stored as int32, all other inputs as uint8. Padded tokens are stored too: what stands there is the same
here and there. A ``global_attention_mask`` of zeros means that transformers is given none, so that a classifier has its
first token marked; any other marks a real token in every row.

transformers takes Longformer's probabilities in float32 whatever the model's precision, and it takes only windows that
divide the largest, and none of 2. It makes the mask of Canine's first layer in float32, where the lowest float64 is
infinite and zero times it no number: for Canine ``Tensor.float`` is ``Tensor.double`` here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from common import Checkpoints, randomise
from safetensors.torch import save_file

SIZES: dict[str, Any] = {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 17}
LONGFORMER = {"vocab_size": 43, "max_position_embeddings": 35, "layer_norm_eps": 1e-5}
CANINE = {"num_hash_functions": 4, "type_vocab_size": 3}
#: name: class, saved head, settings, lengths with the real tokens of every row where it is padded
PLAN: dict[str, tuple[str, str, dict[str, Any], dict[int, list[int]]]] = {
    "longformer-formaskedlm": (
        "Longformer",
        "ForMaskedLM",
        {**LONGFORMER, "num_hidden_layers": 2, "attention_window": [4, 12]},
        {1: [1], 2: [2], 3: [3], 4: [4], 7: [7, 3, 1], 17: [17, 9, 1], 33: [33, 11]},
    ),
    "longformer-forsequenceclassification": (
        "Longformer",
        "ForSequenceClassification",
        {
            **LONGFORMER,
            "num_hidden_layers": 2,
            "attention_window": [8, 4],
            "type_vocab_size": 1,
            "num_labels": 3,
            "hidden_act": "relu",
            "pad_token_id": 0,
        },
        {1: [1], 5: [5], 12: [12, 5, 2], 34: [34, 20, 9]},
    ),
    "longformer-forquestionanswering": (
        "Longformer",
        "ForQuestionAnswering",
        {**LONGFORMER, "num_hidden_layers": 1, "attention_window": 4, "sep_token_id": 4},
        {9: [9], 17: [17, 11, 6], 33: [33, 19]},
    ),
    "canine-model": (
        "Canine",
        "Model",
        {
            **CANINE,
            "num_hidden_layers": 2,
            "num_hash_buckets": 37,
            "max_position_embeddings": 41,
            "local_transformer_stride": 16,
        },
        {4: [4], 5: [5], 7: [7], 8: [8], 15: [15], 16: [16], 17: [17, 9, 1], 32: [32], 33: [33, 16, 4], 37: [37, 30]},
    ),
    "canine-fortokenclassification": (
        "Canine",
        "ForTokenClassification",
        {
            **CANINE,
            "num_hidden_layers": 1,
            "num_hash_functions": 5,
            "num_hash_buckets": 150,
            "max_position_embeddings": 141,
            "num_labels": 3,
            "type_vocab_size": 1,
        },
        {127: [127], 129: [129], 141: [141, 128]},
    ),
    "canine-forsequenceclassification": (
        "Canine",
        "ForSequenceClassification",
        {
            **CANINE,
            "num_hidden_layers": 1,
            "num_hash_functions": 2,
            "num_hash_buckets": 61,
            "max_position_embeddings": 47,
            "local_transformer_stride": 10,
            "downsampling_rate": 3,
            "upsampling_kernel_size": 5,
            "hidden_act": "relu",
            "num_labels": 3,
        },
        {3: [3], 4: [4], 5: [5], 6: [6], 20: [20, 10, 2], 47: [47, 29, 11]},
    ),
    "longformer-model": (
        "Longformer",
        "Model",
        {**LONGFORMER, "num_hidden_layers": 1, "attention_window": 4},
        {3: [3], 17: [17, 9, 1], 33: [33, 11]},
    ),
}


@contextmanager
def wide(family: str) -> Iterator[None]:
    """Where Canine's mask is made in float64."""
    if family != "Canine":
        yield
        return
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def inputs(model: torch.nn.Module, real: np.ndarray, marks: bool, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """``real``: which tokens are no padding. ``marks``: mark some of them for global attention."""
    config, canine = model.config, model.config.model_type == "canine"
    if canine:
        # letters, the code points of the special tokens, and all of Unicode
        kinds = [rng.integers(97, 123, real.shape), rng.integers(0xE000, 0xE005, real.shape)]
        kinds.append(rng.integers(1, 0x110000, real.shape))
        ids = np.choose(rng.integers(0, 3, real.shape), kinds)
    else:
        ids = rng.integers(5, config.vocab_size, real.shape)
    if "QuestionAnswering" in type(model).__name__:
        for row, keep in zip(ids, real, strict=True):
            first, last = np.flatnonzero(keep)[[0, -1]]
            row[[first + 2, first + 3, last]] = config.sep_token_id
    found = {"input_ids": np.where(real, ids, config.pad_token_id), "attention_mask": real}
    if config.type_vocab_size > 1:
        found["token_type_ids"] = np.where(real, rng.integers(0, config.type_vocab_size, real.shape), 0)
    if not canine:
        flags = real & (rng.random(real.shape) < 0.25) & marks
        for row, keep in zip(flags, real, strict=True):
            row[rng.choice(np.flatnonzero(keep))] |= marks
        found["global_attention_mask"] = flags
    return {name: torch.from_numpy(value.astype(np.int64)) for name, value in found.items()}


def run(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    named = dict(given)
    if "global_attention_mask" in named and not named["global_attention_mask"].any():
        del named["global_attention_mask"]
    with torch.inference_mode(), wide(type(model).__name__[:6]):
        out = model(**named)
        base = model.base_model(**named) if model.base_model is not model else out
    found = {"last_hidden_state": base.last_hidden_state}
    names = ["logits", "start_logits", "end_logits"]
    if type(model).__name__ == "LongformerModel":  # of Canine molecules are pooled, which posexport does not
        names.append("pooler_output")
    found |= {name: out[name] for name in names if name in out}
    assert all(value.isfinite().all() for value in found.values())
    return found


def check(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> None:
    """The order of the tokens changes more than the order of the outputs."""
    state = run(model, given)["last_hidden_state"]
    moved = run(model, {name: value.flip(1) for name, value in given.items()})["last_hidden_state"].flip(1)
    assert (moved - state).abs().max() > 0.05 * state.abs().max(), "positions do not matter"


def points(lengths: dict[int, list[int]], longformer: bool) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Name, which tokens are real, whether some are marked."""
    for length, rows in lengths.items():
        slots = np.arange(length)[None, :]
        real = np.array(rows)[:, None]
        yield f"none-{length}", slots < length, False
        if longformer:
            yield f"marked-{length}", slots < length, True
        if len(rows) > 1:
            yield f"right-{length}", slots < real, longformer
            yield f"left-{length}", slots >= length - real, False


def make(target: Path, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stem, saved, settings, lengths = PLAN[name]
    config = getattr(transformers, f"{stem}Config")(**SIZES, **settings)
    model = getattr(transformers, stem + saved)(config).eval()
    randomise(model, rng)
    if stem == "Canine":
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(0.75)  # its convolutions sum up much, and rounding with it
    model.save_pretrained(target, safe_serialization=True)
    model = type(model).from_pretrained(target).double().eval()
    tensors = {}
    for point, real, marks in points(lengths, stem == "Longformer"):
        given = inputs(model, real, marks, rng)
        if point == f"none-{max(lengths)}":
            check(model, given)
        for key, value in given.items():
            code_points = stem == "Canine" and key == "input_ids"
            tensors[f"{point}.{key}"] = value.to(torch.int32 if code_points else torch.uint8)
        for key, value in run(model, given).items():
            if key != "logits" or saved != "ForMaskedLM" or point.endswith("-17"):
                tensors[f"{point}.{key}"] = value.to(torch.float32).contiguous()
    save_file(tensors, target / "expected.safetensors")
    target.joinpath("generation_config.json").unlink(missing_ok=True)


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {name: partial(make, name=name, seed=seed) for seed, name in enumerate(PLAN, start=30_500)}
