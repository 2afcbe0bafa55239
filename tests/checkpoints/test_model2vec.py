"""Folders of model2vec: means over a table's rows, with weights and clusters, and classifiers on them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import read, refusal
from safetensors.torch import save_file
from torch import Tensor

import posexport
from posexport.models.static import StaticEmbedding
from tests import bge_m3
from tests.parity_models import of_changed, prove
from tests.tolerances import agree

WIDTH, CLUSTERS, VOCABULARY = 11, 17, bge_m3.VOCABULARY
UNKNOWN = 3
#: an unknown word, repeated ones, unknown ones alone; the last is longer than a text may be
TEXTS = ["w7 w8 nobody w7", "w9", "nobody", "w10 w11 w12 w13 w14 w15 w16"]
#: tokens of a text, and characters: the median word of the vocabulary has three
LENGTH = 5


def write(folder: Path, *, clusters: bool = False, head: str | None = None, normalise: bool = False) -> Path:
    folder.mkdir()
    draw = torch.Generator().manual_seed(7)
    tensors = {"embeddings": torch.randn((CLUSTERS if clusters else VOCABULARY, WIDTH), generator=draw)}
    if clusters:
        tensors["mapping"] = torch.randint(0, CLUSTERS, (VOCABULARY,), generator=draw)
        tensors["weights"] = torch.rand(VOCABULARY, generator=draw)
    save_file(tensors, folder / "model.safetensors")
    config: dict[str, Any] = {"model_type": "model2vec", "normalize": normalise, "max_length": LENGTH}
    if head is not None:
        config["head_config"] = {"n_layers": 2, "activation": head, "classes": ["a", "b", "c"]}
        if head == "identity":
            config["head_config"]["classes"] = None
        shapes = {"head.0.weight": (6, WIDTH), "head.0.bias": (6,), "head.1.weight": (3, 6), "head.1.bias": (3,)}
        save_file(
            {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}, folder / "head.safetensors"
        )
    (folder / "config.json").write_text(json.dumps(config))
    modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    # model2vec tokenizes without the special tokens that a tokenizer may add
    bge_m3.tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def vector(folder: Path, text: str, *, limit: int | None = LENGTH) -> np.ndarray:
    """The library's, in float64."""
    from safetensors.numpy import load_file

    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    text = text if limit is None else text[: limit * 3]
    ids = bge_m3.tokenizer().encode(text, add_special_tokens=False).ids[:limit]
    rows = []
    for number in ids:
        if number != UNKNOWN:
            row = tensors["embeddings"][tensors["mapping"][number] if "mapping" in tensors else number]
            rows.append(row.astype(np.float64) * (tensors["weights"][number] if "weights" in tensors else 1))
    mean = sum(rows) / len(rows) if rows else np.zeros(WIDTH)
    return np.asarray(mean / (np.sqrt((mean**2).sum()) + 1e-32) if config["normalize"] else mean)


def logits(folder: Path, x: np.ndarray) -> np.ndarray:
    from safetensors.numpy import load_file

    head = {name: array.astype(np.float64) for name, array in load_file(folder / "head.safetensors").items()}
    inner = np.maximum(head["head.0.weight"] @ x + head["head.0.bias"], 0)
    return np.asarray(head["head.1.weight"] @ inner + head["head.1.bias"])


@pytest.mark.all(but=("[True",))
@pytest.mark.parametrize("clusters", [False, True])
def test_vectors_are_the_formula(tmp_path: Path, clusters: bool) -> None:
    folder = write(tmp_path / "m", clusters=clusters, normalise=clusters)
    posexport.convert(str(folder), tmp_path / "b", verify=False)
    session = posexport.load(tmp_path / "b")
    assert session.manifest.task == "sentence-embedding"
    for size in (1, 4):
        got = session.encode(TEXTS, batch_size=size)
        agree(got, np.stack([vector(folder, text) for text in TEXTS]), "operator", np.float32)
    # the limit decides of the last text
    assert np.abs(vector(folder, TEXTS[3]) - vector(folder, TEXTS[3], limit=None)).max() > 0.01


@pytest.mark.all(but=("[softmax",))
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_labels_have_the_head_s_probabilities(tmp_path: Path, activation: str) -> None:
    folder = write(tmp_path / "m", head=activation)
    posexport.convert(str(folder), tmp_path / "b", verify=False)
    for text, answer in zip(TEXTS, posexport.pipeline(tmp_path / "b")(TEXTS, top_k=None), strict=True):
        x = logits(folder, vector(folder, text, limit=None))
        wanted = 1 / (1 + np.exp(-x)) if activation == "sigmoid" else np.exp(x) / np.exp(x).sum()
        got = {found["label"]: found["score"] for found in answer}
        agree([got[name] for name in "abc"], wanted, "another library", np.float32)


def test_a_head_that_projects_makes_the_vector(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", head="identity")
    source = read(folder)
    assert (source.task, source.outputs[0].name) == ("sentence-embedding", "sentence_embedding")
    with torch.inference_mode():
        (got,) = source.module(torch.tensor([[7, 8, 3, 7]]))
    agree(got[0], logits(folder, vector(folder, "w7 w8 w7", limit=None)), "operator", torch.float32)


def unknown_counts(model: StaticEmbedding) -> None:
    model.unknown = None


def one_row(model: StaticEmbedding) -> None:
    model.table.weight[20] *= 1.01


@pytest.mark.fresh
@pytest.mark.all(but=("[unknown_counts",))
@pytest.mark.parametrize("change", [None, unknown_counts, one_row])
def test_the_proof_finds_a_wrong_table(tmp_path: Path, change: Callable[[Any], None] | None) -> None:
    folder = write(tmp_path / "m", clusters=True, normalise=True)
    right, graph = of_changed(lambda: read(folder), change, tmp_path)
    assert prove(right, graph, lengths=(2, 17), threads=1).passed == (change is None)


def test_an_older_classifier_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    (folder / "pipeline.skops").write_bytes(b"not read")
    assert "has its classifier as pipeline.skops, scikit-learn objects, which are not read; save it again" in refusal(
        folder
    )
    assert read(folder, "sentence-embedding").task == "sentence-embedding"


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"embedding.weight": torch.ones(3, 2)}, "has no tensor embeddings"),
        ({"embeddings": torch.ones(3, 2), "mapping": torch.tensor([0, 3])}, "mapping names rows that embeddings lacks"),
        ({"embeddings": torch.ones(3, 2), "weights": torch.ones(2)}, "weights are [2], for 3 tokens"),
        ({"embeddings": torch.ones(3, 2, dtype=torch.int8)}, "is stored in a format other than"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, tensors: dict[str, Tensor], said: str) -> None:
    folder = write(tmp_path / "m")
    save_file(tensors, folder / "model.safetensors")
    assert said in refusal(folder)


def test_other_heads_and_tasks_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", head="softmax")
    assert "model2vec has no task fill-mask; it has sequence-classification, sentence-embedding" in refusal(
        folder, "fill-mask"
    )
    (folder / "head.safetensors").unlink()
    assert "has a head_config, and there is no head.safetensors" in refusal(folder)
