"""OpenVINO with bundles of --inline: with_openvino.py JOB ANSWER"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov


def compile_model(core: ov.Core, bundle: str) -> ov.CompiledModel:
    """The bundle's model on the CPU, in float32: OpenVINO computes in bfloat16 by default where the CPU has it."""
    return core.compile_model(f"{bundle}/model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def encode(
    model: ov.CompiledModel, input_ids: list[list[int]], attention_mask: list[list[int]], output: str
) -> np.ndarray:
    """An output of an encoder for padded rows of token ids and their mask."""
    ids = np.array(input_ids, dtype=np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.array(attention_mask), "token_type_ids": np.zeros_like(ids)}
    return model(feeds)[output]


def generate(model: ov.CompiledModel, prompt: list[int], max_new_tokens: int) -> tuple[list[int], np.ndarray]:
    """Greedy decoding with a dynamic KV cache, and the logits after the prompt."""
    feeds: dict[str, Any] = {}
    for port in model.inputs:
        if port.any_name.startswith("past_key_values."):
            _, heads, _, size = port.partial_shape
            feeds[port.any_name] = np.zeros((1, heads.get_length(), 0, size.get_length()), dtype=np.float32)
    tokens: list[int] = []
    first = None
    ids = prompt
    while len(tokens) < max_new_tokens:
        feeds["input_ids"] = np.array([ids], dtype=np.int64)
        feeds["attention_mask"] = np.ones((1, len(prompt) + len(tokens)), dtype=np.int64)
        results = model(feeds)
        for port in model.outputs:
            if port.any_name.startswith("present."):
                feeds[port.any_name.replace("present.", "past_key_values.")] = results[port].copy()
        logits = results["logits"][0, -1]
        first = logits.copy() if first is None else first
        ids = [int(logits.argmax())]
        tokens += ids
    assert first is not None
    return tokens, first


def main() -> None:
    """Answer a job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    core = ov.Core()
    encoder, decoder = compile_model(core, job["encoder_inline"]), compile_model(core, job["decoder_inline"])
    embeddings = [encode(encoder, **batch, output="sentence_embedding") for batch in job["batches"]]
    encodings = {}
    for name, bundle in job["encodings"].items():
        small = compile_model(core, bundle)
        encodings[name] = [encode(small, **batch, output="last_hidden_state") for batch in job["small_batches"]]
    rollouts = [generate(decoder, prompt, job["new_tokens"]) for prompt in job["prompts"]]
    answer = {
        "embeddings": [array.ravel().tolist() for array in embeddings],
        "tokens": [tokens for tokens, _ in rollouts],
        "logits": [logits.tolist() for _, logits in rollouts],
        "encodings": {name: [array.ravel().tolist() for array in arrays] for name, arrays in encodings.items()},
        "versions": {"openvino": ov.__version__},
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


main()
