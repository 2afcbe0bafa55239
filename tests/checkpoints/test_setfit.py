"""SetFit: a classifier behind an embedder, as ``SetFitHead`` and scikit-learn's LogisticRegression compute it."""

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
from tests import bge_m3
from tests.bge_m3 import HIDDEN, TEXTS
from tests.parity_models import of_changed, prove
from tests.tolerances import agree

LABELS = ["good", "bad", "neither"]
Tensors = dict[str, Tensor]


def write(folder: Path, *, labels: list[str] | None = None, normalise: bool = False) -> Path:
    """What SetFit saves, with the classifier as a pickle only."""
    bge_m3.write(folder)
    for name in ("sparse_linear.pt", "colbert_linear.pt"):
        (folder / name).unlink()
    # the embedder's vectors have any length
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    (folder / "config_setfit.json").write_text(json.dumps({"labels": labels, "normalize_embeddings": normalise}))
    (folder / "model_head.pkl").write_bytes(b"not read")
    return folder


def head(labels: int = 3) -> Tensors:
    generator = torch.Generator().manual_seed(9)
    shapes = {"linear.weight": (labels, HIDDEN), "linear.bias": (labels,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def probabilities(vector: np.ndarray, tensors: Tensors) -> np.ndarray:
    logits = tensors["linear.weight"].double().numpy() @ vector + tensors["linear.bias"].double().numpy()
    powers: np.ndarray = np.exp(logits - logits.max())
    return powers / powers.sum()


@pytest.mark.all(but=("[True-pt",))
@pytest.mark.parametrize(("normalise", "kind"), [(False, "safetensors"), (True, "pt")])
def test_probabilities_are_the_formula(tmp_path: Path, normalise: bool, kind: str) -> None:
    folder = write(tmp_path / "m", labels=LABELS, normalise=normalise)
    tensors = head()
    (save_file if kind == "safetensors" else torch.save)(tensors, folder / f"model_head.{kind}")
    options: dict[str, Any] = {"target": "cpu", "verify": False}
    posexport.convert(str(folder), tmp_path / "b", allow_pickle=kind == "pt", **options)
    posexport.convert(str(folder), tmp_path / "e", task="sentence-embedding", **options)
    vectors = posexport.load(tmp_path / "e").encode(TEXTS, normalize_embeddings=normalise)
    answers = posexport.pipeline(tmp_path / "b")(TEXTS[:-1], top_k=None)
    for vector, answer in zip(vectors[:-1], answers, strict=True):
        got = {found["label"]: found["score"] for found in answer}
        wanted = probabilities(vector, tensors)
        agree([got[name] for name in LABELS], wanted, "another library", np.float32)
    assert not any("SetFit" in remark for remark in posexport.load(tmp_path / "b").manifest.remarks)


def test_two_labels_of_a_logistic_regression_are_a_row_of_zeros_and_its_row() -> None:
    """The lines of docs/rerankers.md: the softmax of 0 and a logit is the logistic function of the logit."""
    row, bias, vector = head(1)["linear.weight"], head(1)["linear.bias"], np.linspace(-1, 1, HIDDEN)
    both = {"linear.weight": torch.cat([0 * row, row]), "linear.bias": torch.cat([0 * bias, bias])}
    logit = float(row[0].double().numpy() @ vector + float(bias))
    agree(probabilities(vector, both)[1], np.array(1 / (1 + np.exp(-logit))), "rounded", np.float64)


def test_labels_without_names_are_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    save_file(head(2), folder / "model_head.safetensors")
    source = read(folder)
    assert (source.task, source.labels) == ("sequence-classification", ["0", "1"])
    assert [spec.axes for spec in source.outputs] == [["batch_size", 2]]


def swapped(module: Any) -> None:
    weight = module.head.steps[-1].linear.weight
    weight.copy_(weight.flip(0))


def longer(module: Any) -> None:
    module.head.steps[-1].linear.bias += 1e-3


@pytest.mark.fresh
@pytest.mark.all(but=("[longer",))
@pytest.mark.parametrize("change", [None, swapped, longer])
def test_the_proof_finds_a_wrong_classifier(tmp_path: Path, change: Callable[[Any], None] | None) -> None:
    folder = write(tmp_path / "m")
    save_file(head(), folder / "model_head.safetensors")
    right, graph = of_changed(lambda: read(folder), change, tmp_path)
    assert prove(right, graph, lengths=(2, 17), threads=1).passed == (change is None)


def test_a_pickle_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    said = refusal(folder)
    assert "has the classifier of SetFit as model_head.pkl, a pickle, which can run code; save its weights as" in said
    assert "choose --task sentence-embedding" in said
    alone = read(folder, "sentence-embedding")
    assert alone.task == "sentence-embedding"
    assert any("model_head.pkl, of SetFit: the classifier is not in this bundle" in remark for remark in alone.remarks)
    torch.save(head(), folder / "model_head.pt")
    assert "model_head.pt (--allow-pickle reads it)" in refusal(folder)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"coef_": torch.ones(2, HIDDEN)}, "has coef_ [2, 20], and needed are linear.weight"),
        (head(1), "of two labels or more"),
        (head(2), "says labels = ['good', 'bad', 'neither'], and the classifier has 2 labels"),
        ({**head(), "linear.weight": torch.ones(3, 19)}, "reads 19 elements, and vectors of texts have 20"),
    ],
)
def test_other_classifiers_are_refused(tmp_path: Path, tensors: Tensors, said: str) -> None:
    folder = write(tmp_path / "m", labels=LABELS)
    save_file(tensors, folder / "model_head.safetensors")
    assert said in refusal(folder)
