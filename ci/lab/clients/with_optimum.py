"""Bundles of make_checkpoints.py's checkpoints in optimum-onnx's ORTModel classes: with_optimum.py FOLDER ANSWER"""

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import optimum.onnxruntime as ort
import torch
from PIL import Image
from transformers import AutoFeatureExtractor, AutoProcessor, AutoTokenizer


def smollm2(bundle: Path, job: dict[str, Any]) -> dict[str, Any]:
    tokenizer, model = AutoTokenizer.from_pretrained(bundle), ort.ORTModelForCausalLM.from_pretrained(bundle)
    tokens = []
    for prompt in job["prompts"]:
        ids = tokenizer(prompt, return_tensors="pt")
        answer = model.generate(**ids, max_new_tokens=job["new_tokens"], do_sample=False, pad_token_id=0)
        tokens.append(answer[0, ids["input_ids"].shape[1] :].tolist())
    return {"tokens": tokens}


def qwen3_embedding(bundle: Path, job: dict[str, Any]) -> dict[str, Any]:
    tokenizer, model = AutoTokenizer.from_pretrained(bundle), ort.ORTModelForFeatureExtraction.from_pretrained(bundle)
    ids = tokenizer(job["texts"], padding=True, return_tensors="pt")
    states = model(**ids).last_hidden_state[:, -1]
    return {"embeddings": torch.nn.functional.normalize(states, dim=-1).tolist()}


def clip(bundle: Path, job: dict[str, Any]) -> dict[str, Any]:
    processor = AutoProcessor.from_pretrained(bundle, use_fast=False)
    model = ort.ORTModelForZeroShotImageClassification.from_pretrained(bundle)
    pixels = np.array(job["pixels"], dtype=np.uint8).reshape(job["side"], job["side"], 3)
    given = processor(text=job["texts"], images=Image.fromarray(pixels), padding=True, return_tensors="pt")
    answer = model(**given)
    return {"logits_per_image": answer.logits_per_image.tolist(), "image_embeds": answer.image_embeds.tolist()}


def wav2vec2(bundle: Path, job: dict[str, Any]) -> dict[str, Any]:
    extractor, model = AutoFeatureExtractor.from_pretrained(bundle), ort.ORTModelForCTC.from_pretrained(bundle)
    given = extractor(np.array(job["sound"], dtype=np.float32), sampling_rate=16000, return_tensors="pt")
    return {"logits": model(**given).logits.tolist()}


def main(folder: Path, target: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    asked: dict[str, Callable[..., dict[str, Any]]] = {
        "smollm2": smollm2,
        "qwen3-embedding": qwen3_embedding,
        "clip": clip,
        "wav2vec2": wav2vec2,
    }
    answer: dict[str, Any] = {}
    for name, compute in asked.items():
        try:
            answer[name] = compute(folder / "optimum" / name, job)
        except Exception as err:  # noqa: BLE001 - what a library of others raises is its answer
            answer[name] = {"error": f"{type(err).__name__}: {err}"}
    answer["versions"] = {name: version(name) for name in ("optimum-onnx", "transformers", "onnxruntime")}
    target.write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
