"""ONNX's own reference evaluator (NumPy) with bundles of --inline, for any runtime: with_reference.py JOB ANSWER"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator


def named(model: ReferenceEvaluator, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    """All outputs by name."""
    return dict(zip(model.output_names, model.run(None, feeds), strict=True))


def encode(
    model: ReferenceEvaluator, input_ids: list[list[int]], attention_mask: list[list[int]]
) -> dict[str, np.ndarray]:
    """All outputs of an encoder for padded rows of token ids and their mask."""
    ids = np.array(input_ids, dtype=np.int64)
    return named(model, {"input_ids": ids, "attention_mask": np.array(attention_mask), "token_type_ids": ids * 0})


def generate(model: ReferenceEvaluator, prompt: list[int], max_new_tokens: int) -> tuple[list[int], np.ndarray]:
    """Greedy decoding with a dynamic KV cache, and the logits after the prompt."""
    past = [port for port in model.proto_.graph.input if port.name.startswith("past_key_values.")]
    feeds: dict[str, Any] = {}
    for port in past:
        _, heads, _, size = port.type.tensor_type.shape.dim
        feeds[port.name] = np.zeros((1, heads.dim_value, 0, size.dim_value), dtype=np.float32)
    tokens: list[int] = []
    first = None
    ids = prompt
    while len(tokens) < max_new_tokens:
        feeds["input_ids"] = np.array([ids], dtype=np.int64)
        feeds["attention_mask"] = np.ones((1, len(prompt) + len(tokens)), dtype=np.int64)
        results = named(model, feeds)
        feeds |= {port.name: results[port.name.replace("past_key_values.", "present.")] for port in past}
        logits = results["logits"][0, -1]
        first = logits if first is None else first
        ids = [int(logits.argmax())]
        tokens += ids
    assert first is not None
    return tokens, first


def main() -> None:
    """Answer a job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    encoder = ReferenceEvaluator(f"{job['encoder_inline']}/model.onnx")
    decoder = ReferenceEvaluator(f"{job['decoder_inline']}/model.onnx")
    embeddings = [encode(encoder, **batch)["sentence_embedding"] for batch in job["batches"]]
    encodings = {}
    for name, bundle in job["encodings"].items():
        small = ReferenceEvaluator(f"{bundle}/model.onnx")
        encodings[name] = [encode(small, **batch)["last_hidden_state"] for batch in job["small_batches"]]
    rollouts = [generate(decoder, prompt, job["new_tokens"]) for prompt in job["prompts"]]
    answer = {
        "embeddings": [array.ravel().tolist() for array in embeddings],
        "tokens": [tokens for tokens, _ in rollouts],
        "logits": [logits.tolist() for _, logits in rollouts],
        "encodings": {name: [array.ravel().tolist() for array in arrays] for name, arrays in encodings.items()},
        "versions": {"onnx": version("onnx")},
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


main()
