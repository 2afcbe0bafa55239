"""Quantized graphs are judged by agreement: figures against NumPy, right graphs that pass, broken ones that do not."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import posexport
from posexport.base.spec import BATCH, PAST, SEQUENCE, InputSpec, Limits, OutputSpec, Role
from posexport.errors import PosexportError
from posexport.inspect.bench.candidate import Export, candidates
from posexport.inspect.bench.records import Point as BenchPoint
from posexport.inspect.bench.run import References, right
from posexport.proof.agreement.cosine import cosines
from posexport.proof.agreement.on_grid import few
from posexport.proof.agreement.texts import random_rows, surprise
from posexport.proof.grid.point import GridPoint
from posexport.run.arrays import read_texts
from posexport.run.bundle.read import read
from posexport.run.texts import TOKENIZER
from posexport.run.tokenizer.byte_pair import train
from posexport.study.compare.accuracy import measure, one
from posexport.study.compare.records import Document, Setup, TaskInfo, measured_at, to_csv, to_text
from tests.small import proven
from tests.tolerances import agree, agree_each

SETTINGS = {"layers": 2, "hidden": 60, "heads": 5, "vocab": 61}


def test_cosines_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((3, 5, 19))
    y = truth + 0.3 * rng.standard_normal(truth.shape)
    keep = np.arange(5) < np.array([5, 2, 4])[:, None]
    y[~keep] = 1e9  # what is padded must not count
    spec = OutputSpec(name="logits", axes=[BATCH, SEQUENCE, 19])
    found = cosines(y, truth, spec, keep)
    pairs = [(y[b, t], truth[b, t]) for b in range(3) for t in range(5) if keep[b, t]]
    expected = [np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) for a, b in pairs]
    agree_each(np.sort(found.values), np.sort(expected), "operator", np.float64)
    agree(found.mean, np.mean(expected), "operator", np.float64)
    agree(found.least, min(expected), "operator", np.float64)
    agree(found.top_1, np.mean([np.argmax(a) == np.argmax(b) for a, b in pairs]), "rounded", np.float64)
    assert len(expected) == 11


def test_outputs_with_few_elements_are_one_vector() -> None:
    rng = np.random.default_rng(1)
    truth = rng.standard_normal((3, 7))
    y = truth + rng.standard_normal(truth.shape)
    found = cosines(y, truth, OutputSpec(name="start_logits", axes=[BATCH, SEQUENCE]), None)
    dot = (y * truth).sum() / np.sqrt((y * y).sum() * (truth * truth).sum())
    agree(found.values, [dot], "operator", np.float64)
    agree(found.top_1, np.mean(y.argmax(-1) == truth.argmax(-1)), "rounded", np.float64)
    nothing = cosines(y[:1], truth[:1], OutputSpec(name="start_logits", axes=[BATCH, SEQUENCE]), None)
    assert nothing.mean is None


def test_two_classes_have_a_best_one_and_one_has_not() -> None:
    truth = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]])
    y = np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 3.0]])
    agree(cosines(y, truth, OutputSpec(name="logits", axes=[BATCH, 2]), None).top_1, 2 / 3, "rounded", np.float64)
    assert cosines(y[:, :1], truth[:, :1], OutputSpec(name="logits", axes=[BATCH, 1]), None).top_1 is None


def test_costs_are_measured_at_the_largest_batch_of_short_lengths_in_one_call() -> None:
    def point(batch: int, length: int, **more: Any) -> GridPoint:
        return GridPoint(batch=batch, length=length, **more)

    points = [point(1, 5), point(3, 5), point(2, 9, calls=(8, 1)), point(1, 600), point(2, 129), point(1, 130)]
    assert few(points) == [point(3, 5), point(2, 129)]
    assert few([point(1, 600), point(3, 300), point(1, 300)]) == [point(1, 300)]
    assert few([point(1, 9, must_be_rejected=True)]) == []


def test_random_rows_are_for_what_reads_tokens_only() -> None:
    def interface(*roles: Role) -> SimpleNamespace:
        axes = {"cache": [BATCH, 5, PAST, 4]}
        return SimpleNamespace(
            inputs=[
                InputSpec(name=role, dtype="int64", axes=axes.get(role, [BATCH, SEQUENCE]), role=role, size=9)
                for role in roles
            ]
        )

    every: tuple[Role, ...] = ("tokens", "types", "mask", "flags", "cache", "positions")
    limits = Limits(max_length=20, min_length=3)
    assert [feeds["tokens"].shape for feeds in random_rows(interface(*every), limits)] == [(4, 13), (4, 20)]
    assert [feeds["tokens"].shape for feeds in random_rows(interface("tokens"), Limits(min_length=30))] == [
        (4, 30),
        (4, 48),
    ]
    assert random_rows(interface("mask"), limits) == random_rows(interface("tokens", "values"), limits) == []


def test_perplexity_is_that_of_the_softmax() -> None:
    logits = np.random.default_rng(2).standard_normal((4, 9)) * 5
    ids = [3, 8, 0, 2]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log([probabilities[0, 8], probabilities[1, 0], probabilities[2, 2]]).sum()
    agree(surprise(logits, ids), expected, "operator", np.float64)


def test_texts_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\n two \n", encoding="utf-8")
    assert read_texts(path) == ["one", "two"]
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(PosexportError, match="has no texts; give at least one"):
        read_texts(path)
    with pytest.raises(PosexportError, match="cannot read"):
        read_texts(tmp_path / "absent")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder in int8, its cost measured on three texts."""
    folder = tmp_path_factory.mktemp("int8")
    corpus = folder / "texts.txt"
    corpus.write_text("the cat sleeps on the warm stove\na kitten naps by the oven\nthey are cats\n")
    (folder / "tokenizer.json").write_bytes(train(corpus, 45).data)
    done = proven(
        "decoder-rope",
        folder / "bundle",
        settings=SETTINGS,
        precision="int8",
        tokenizer=folder / "tokenizer.json",
        evaluate=corpus,
        lengths=[1, 17, 65],
        threads=1,
    )
    assert done.verdict == "checked at 1, 17, 65 tokens, not proven"
    return folder / "bundle"


@pytest.mark.all
def test_the_manifest_says_what_a_precision_costs(bundle: Path) -> None:
    manifest = read(bundle)
    cost = manifest.cost
    assert cost is not None
    assert cost.on_texts is not None
    assert manifest.precision == "int8"
    assert 0.25 < cost.weights < 0.6
    assert set(cost.on_grid) == {"logits", "present.*"}
    assert cost.on_texts.texts == 3
    assert cost.on_texts.fewest_tokens < cost.on_texts.most_tokens
    (name,) = cost.on_texts.outputs
    assert name == "logits"
    assert 0.99 < cost.on_texts.outputs[name].cosine < 1 - 1e-9
    assert cost.on_texts.outputs[name].top_1 is not None
    assert 0.5 < (cost.on_texts.perplexity_ratio or 0) < 2
    assert cost.on_texts.perplexity_ratio != 1
    assert not list(bundle.parent.glob("**/.float32*")), "the float32 graph is no part of the bundle"


@pytest.mark.all
def test_verify_proves_by_the_weights_in_the_file(bundle: Path) -> None:
    report = posexport.verify(bundle, "decoder-rope", lengths=[1, 17], threads=1)
    assert report.passed, report.describe()
    assert report.precision == "int8"
    assert set(report.agreement) == {"logits", "present.*"}
    assert posexport.verify(bundle, threads=1).verdict == "checked on the stored sample"
    within = posexport.verify(bundle, "decoder-rope", lengths=[17], threads=1, tolerance=0.5)
    assert within.verdict == "within 0.5"


def test_texts_cost_nothing_in_float32(tmp_path: Path) -> None:
    with pytest.raises(
        PosexportError, match="--evaluate measures what a precision costs against float32, got --precision"
    ):
        posexport.convert("encoder-rope", tmp_path / "b", evaluate=tmp_path / "t")


@pytest.mark.parametrize(
    ("gap", "cosine", "precisions", "good"),
    [
        (9e-4, None, [], True),
        (2e-3, None, [], False),
        (3e-2, 0.9995, ["fp16"], True),
        (0.3, 0.99, ["fp16"], False),
        (0.1, 0.98, ["int8"], True),
        (0.1, 0.7, ["int8"], False),
        (0.5, 0.7, ["int8", "int4"], True),
        (0.5, None, ["int8"], False),
    ],
)
def test_answers_of_one_model_differ_by_what_its_precision_may_cost(
    gap: float, cosine: float | None, precisions: list[str], good: bool
) -> None:
    assert right(gap, cosine, precisions) == good


@pytest.mark.all
def test_precisions_are_candidates_of_one_model(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    float32 = tmp_path / "fp32" / "bundle"
    posexport.convert("decoder-rope", float32, settings=SETTINGS, tokenizer=bundle / TOKENIZER, verify=False)
    made = {"fp32": float32.parent, "int8": bundle.parent}

    def convert(_source: str, options: list[str], out: Path) -> Export:
        shutil.copytree(made[options[options.index("--precision") + 1]] / "bundle", out)
        return Export(seconds=1, peak=None)

    monkeypatch.setattr("posexport.inspect.bench.candidate.convert", convert)
    (first, second), _ = found = candidates(["decoder-rope"], ["fp32", "int8"], [], tmp_path / "found")
    assert [(each.name, each.precision) for each in found[0]] == [
        ("decoder-rope fp32", "fp32"),
        ("decoder-rope int8", "int8"),
    ]
    assert first.weights == second.weights
    references, point = References(), BenchPoint(new=1)
    truth = np.random.default_rng(3).standard_normal((1, 1, 61))
    for name, answer in (("a", truth), ("b", 1.01 * truth + 0.01), ("c", truth[..., ::-1])):
        np.save(tmp_path / f"{name}.npy", answer)
    assert references.compared(first, point, tmp_path / "a.npy") is None
    near, far = (references.compared(second, point, tmp_path / f"{name}.npy") for name in "bc")
    assert near is not None
    assert far is not None
    assert near.right
    assert near.cosine is not None
    assert 0.999 < near.cosine < 1
    assert not far.right
    assert not references.compared(first, point, tmp_path / "b.npy").right  # type: ignore[union-attr]


@pytest.mark.all
def test_an_encoding_is_compared_in_every_precision(tmp_path: Path) -> None:
    setup = Setup(steps=2, hidden=60, heads=5, feedforward=76, rows=6, asked_rows=12, timed_rows=2, timed_runs=2)
    setup = msgspec.structs.replace(setup, precisions=["int8"])
    path = tmp_path / "rope.onnx"
    result = one("rope", setup, path)
    cost = measure({"rope": path}, setup, lambda *_: None)["rope"]
    (row,) = measured_at(msgspec.structs.replace(result, cost=cost))
    assert (row.encoding, row.precision) == ("rope", "int8")
    assert row.file_bytes == (tmp_path / "rope.int8.onnx").stat().st_size
    assert row.accuracy.keys() == result.accuracy.keys()
    assert row.cosine is not None
    assert 0.99 < row.cosine < 1 - 1e-9
    assert row.latency_to_float32 is not None
    assert row.latency_to_float32 > 0
    asked = [TaskInfo(name=name, question="", answers=2, chance=0.5) for name in row.accuracy]
    shown = Document(setup=setup, lengths=[64, 128, 256], tasks=asked, rows=[], precisions=[row])
    assert "rope int8" in to_text(shown)
    assert b"int8" in to_csv(shown)
