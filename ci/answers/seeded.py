"""Weights of tiny checkpoints by a rule, so that a test rebuilds them from names and shapes without storing them."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

SHAPES = "shapes.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
#: files of JSON that `store` keeps
PARTS = (SHAPES, "config.json", "generation_config.json", "tokenizer_config.json", "preprocessor_config.json")
#: in names of tensors that make logits: large enough that answers differ
HEADS = ("classifier", "score.", "qa_outputs", "lm_head", "decoder.weight", "vocab_projector", "predictions.decoder")


def tensor(name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """The weights called ``name``: those of norms about 1, biases about 0, products that keep the size of their input.

    `RandomState`, whose numbers no version of NumPy changes.
    """
    drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) < 2:
        drawn = drawn * 0.1 + ("norm" in name.lower() or ".ln_" in name) * name.endswith("weight")
    else:
        drawn *= (4.0 if any(head in name for head in HEADS) else 1.3) / np.sqrt(shape[-1])
    return np.asarray(drawn, dtype=np.float32)  # of a scalar NumPy draws a number


def refill(directory: Path) -> None:
    """Replace the floating-point weights of a saved checkpoint by the rule's, and write down names and shapes."""
    stored = load_file(directory / WEIGHTS)
    floats = {name: list(array.shape) for name, array in stored.items() if array.dtype.kind == "f"}
    # what is shared, as an embedding and the logits that it makes, is stored once
    (directory / SHAPES).write_text(json.dumps(floats, indent=0) + "\n")
    others = {name: array for name, array in stored.items() if name not in floats}
    _write(directory, floats, others)


def store(checkpoint: Path, into: Path) -> None:
    """Write the checkpoint without its weights to ``into``: one file for it, and a tokenizer, which others share."""
    parts = {name: json.loads((checkpoint / name).read_text()) for name in PARTS if (checkpoint / name).exists()}
    if (checkpoint / TOKENIZER).exists():
        tokenizer = (checkpoint / TOKENIZER).read_bytes()
        name = f"tokenizer-{zlib.crc32(tokenizer):08x}.json"
        (into / name).write_bytes(tokenizer)
        parts = {TOKENIZER: name, **parts}
    (into / f"{checkpoint.name}.json").write_text(json.dumps(parts) + "\n")


def rebuild(stored: Path, into: Path) -> Path:
    """The checkpoint that `store` wrote to the file ``stored``, with its weights, in ``into``."""
    into.mkdir(parents=True, exist_ok=True)
    parts = json.loads(stored.read_text())
    if TOKENIZER in parts:
        (into / TOKENIZER).write_bytes((stored.parent / parts.pop(TOKENIZER)).read_bytes())
    for name, content in parts.items():
        (into / name).write_text(json.dumps(content) + "\n")
    _write(into, parts[SHAPES], {})
    return into


def _write(directory: Path, shapes: Mapping[str, Sequence[int]], others: Mapping[str, NDArray[Any]]) -> None:
    tensors = {name: tensor(name, shape) for name, shape in shapes.items()}
    save_file({**tensors, **others}, directory / WEIGHTS, metadata={"format": "pt"})
