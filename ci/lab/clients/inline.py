"""What clients of ONNX files do with bundles of --inline; JOB and ANSWER are the arguments of the program."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Model:
    """``run``: all outputs by name; ``caches``: heads and their size, by the inputs of the KV cache."""

    run: Callable[[dict[str, Any]], dict[str, np.ndarray]]
    caches: dict[str, tuple[int, int]]


def encode(
    model: Model, input_ids: list[list[int]], attention_mask: list[list[int]], output: str = "last_hidden_state"
) -> np.ndarray:
    """An output of an encoder for padded rows of token ids and their mask."""
    ids = np.array(input_ids, dtype=np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.array(attention_mask), "token_type_ids": np.zeros_like(ids)}
    return model.run(feeds)[output]


def generate(model: Model, prompt: list[int], max_new_tokens: int) -> tuple[list[int], np.ndarray]:
    """Greedy decoding with a dynamic KV cache, and the logits after the prompt."""
    feeds: dict[str, Any] = {
        name: np.zeros((1, heads, 0, size), dtype=np.float32) for name, (heads, size) in model.caches.items()
    }
    tokens: list[int] = []
    first = None
    ids = prompt
    while len(tokens) < max_new_tokens:
        feeds["input_ids"] = np.array([ids], dtype=np.int64)
        feeds["attention_mask"] = np.ones((1, len(prompt) + len(tokens)), dtype=np.int64)
        results = model.run(feeds)
        feeds |= {name: results[name.replace("past_key_values.", "present.")] for name in model.caches}
        logits = results["logits"][0, -1]
        first = logits if first is None else first
        ids = [int(logits.argmax())]
        tokens += ids
    assert first is not None
    return tokens, first


def main(opened: Callable[[str], Model], versions: dict[str, str]) -> None:
    """Answer a job with the models that ``opened`` makes of files."""
    job = json.loads(Path(sys.argv[1]).read_text())
    encoder, decoder = (opened(f"{job[name]}/model.onnx") for name in ("encoder_inline", "decoder_inline"))
    embeddings = [encode(encoder, **batch, output="sentence_embedding") for batch in job["batches"]]
    encodings = {}
    for name, bundle in job["encodings"].items():
        small = opened(f"{bundle}/model.onnx")
        encodings[name] = [encode(small, **batch).ravel().tolist() for batch in job["small_batches"]]
    rollouts = [generate(decoder, prompt, job["new_tokens"]) for prompt in job["prompts"]]
    answer = {
        "embeddings": [array.ravel().tolist() for array in embeddings],
        "tokens": [tokens for tokens, _ in rollouts],
        "logits": [logits.tolist() for _, logits in rollouts],
        "encodings": encodings,
        "versions": versions,
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))
