"""Infinity loads our layout and gives our vectors; text-embeddings-inference would by the rules of its code."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import posexport
from tests.engines import running
from tests.tolerances import agree

pytestmark = pytest.mark.all

#: in small letters, as Infinity does not read that a model of sentence-transformers lowers its texts first
TEXTS = ["a cat sits on the mat.", "b", "the quick brown fox jumps over the lazy dog"]
#: from within the bundle's folder, as optimum 2.1 finds a graph only by a name relative to it
INFINITY = """
import asyncio, json, sys
from infinity_emb import AsyncEmbeddingEngine, EngineArgs

async def main(texts):
    asked = EngineArgs(model_name_or_path=".", engine="optimum", device="cpu", pooling_method="mean",
                       model_warmup=False, bettertransformer=False, compile=False)
    engine = AsyncEmbeddingEngine.from_args(asked)
    async with engine:
        vectors, _ = await engine.embed(sentences=texts)
    print("\\n" + json.dumps([vector.tolist() for vector in vectors]))

asyncio.run(main(json.load(sys.stdin)))
"""


def converted(target: Path, **options: str) -> Path:
    posexport.convert(str(running.CHECKPOINT), target, verify=False, allow_pickle=True, **options)  # type: ignore[call-arg]
    return target


def test_infinity_gives_the_vectors_of_encode(tmp_path: Path) -> None:
    python = running.environment("infinity") / "python"
    layout = converted(tmp_path / "layout", layout="optimum", task="features")
    config = layout / "tokenizer_config.json"  # of transformers 5, whose class Infinity's transformers 4.57 has not
    config.write_text(config.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
    bundle = posexport.load(converted(tmp_path / "bundle"))
    done = subprocess.run(
        [python, "-c", INFINITY],
        cwd=layout,
        input=json.dumps(TEXTS),
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    vectors = np.array(json.loads(done.stdout.strip().splitlines()[-1]))
    # it divides by the length, which this model's modules may leave out
    agree(vectors, bundle.encode(TEXTS, normalize_embeddings=True), "model in float32", np.float32)


def test_a_bundle_is_what_text_embeddings_inference_reads(tmp_path: Path) -> None:
    """By backends/ort/src/lib.rs: where the graph is, what it is fed, which output is the vector."""
    bundle = converted(tmp_path / "bundle")
    session = onnxruntime.InferenceSession(bundle / "model.onnx", providers=["CPUExecutionProvider"])
    taken = {value.name: value.type for value in session.get_inputs()}
    assert {"input_ids", "attention_mask"} <= set(taken)
    assert set(taken) <= {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
    assert set(taken.values()) == {"tensor(int64)"}
    vector = next(value for value in session.get_outputs() if value.name == "sentence_embedding")
    assert vector.type == "tensor(float)"
    assert len(vector.shape) == 2
    config = json.loads((bundle / "config.json").read_text())
    assert {"hidden_size", "num_hidden_layers", "num_attention_heads"} <= set(config)
    assert (bundle / "tokenizer.json").is_file()
    assert (bundle / "1_Pooling" / "config.json").is_file(), "or its --pooling must be given"
