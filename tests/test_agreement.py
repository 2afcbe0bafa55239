"""Quantized graphs are judged by agreement: figures against NumPy, right graphs that pass, broken ones that do not."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from parity_models import exported

import posexport
from posexport.bench.measure_suite import References, right
from posexport.bench.models import case
from posexport.bench.recipes import Export, Recipe
from posexport.bench.records import Point as BenchPoint
from posexport.bundle.manifest import SAMPLE
from posexport.bundle.read import read
from posexport.compare.comparison_table import measured_at, to_csv, to_text
from posexport.compare.costs import measure
from posexport.compare.one import one
from posexport.compare.records import Document, Setup, TaskInfo
from posexport.errors import PosexportError
from posexport.parity.agreement.agree import agree, compare
from posexport.parity.agreement.cosine import cosines
from posexport.parity.agreement.fall import fall
from posexport.parity.agreement.limits import LIMITS
from posexport.parity.agreement.subset import subset
from posexport.parity.agreement.texts import read_texts, surprise
from posexport.parity.grid.grid import grid
from posexport.parity.report.points import Point
from posexport.parity.report.report import Report
from posexport.parity.run.sample import SampleWriter, check_sample
from posexport.runtime.texts import TOKENIZER
from posexport.sources import builtin
from posexport.sources.source import Source
from posexport.spec import BATCH, SEQUENCE, OutputSpec
from posexport.targets.precision_options import PrecisionOptions
from posexport.tokenizer import train

SETTINGS = {"layers": 2, "hidden": 60, "heads": 5, "vocab": 61}
INT8 = PrecisionOptions(precision="int8")
LENGTHS = (1, 2, 17, 20)


def quantized(model: onnx.ModelProto, *, one_scale: bool = False) -> onnx.ModelProto:
    """Products with constant weights of the main graph in int8, a scale for every row of activations.

    ``one_scale``: the scale of the first row for all rows, as ONNX Runtime 1.31 fuses MatMulInteger, Cast and
    Mul(row scale x channel scale) into an operator that takes one scale.
    """
    made, weights = onnx.ModelProto(), {}
    made.CopyFrom(model)
    graph = made.graph
    for initial in graph.initializer:
        if len(initial.dims) == 2 and initial.data_type == TensorProto.FLOAT:
            weights[initial.name] = numpy_helper.to_array(initial)
    nodes, changed = [], 0
    steps = {"last": np.array([-1]), "step": np.float32(1 / 127), "zero": np.uint8(128), "first": np.array(0)}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), f"q/{key}") for key, value in steps.items())
    for node in graph.node:
        weight = weights.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or any(a.name.startswith("trans") and a.i for a in node.attribute):
            nodes.append(node)
            continue
        name, (x, *_), (out,) = f"q/{changed}", node.input, node.output
        changed += 1
        scale = np.abs(weight).max(0) / 127
        graph.initializer.extend(
            [
                numpy_helper.from_array(np.rint(weight / scale).astype(np.int8), f"{name}/w"),
                numpy_helper.from_array((scale / 127).astype(np.float32), f"{name}/scale"),
            ]
        )
        biased = len(node.input) > 2
        chain = [
            ("Abs", [x], "abs", {}),
            ("ReduceMax", [f"{name}/abs", "q/last"], "top", {"keepdims": 1}),
            ("Div", [x, f"{name}/top"], "unit", {}),
            ("QuantizeLinear", [f"{name}/unit", "q/step", "q/zero"], "q", {}),
            ("MatMulInteger", [f"{name}/q", f"{name}/w", "q/zero"], "count", {}),
            ("Cast", [f"{name}/count"], "cast", {"to": TensorProto.FLOAT}),
            ("Mul", [f"{name}/cast", f"{name}/scale"], "real", {}),
        ]
        top = f"{name}/top"
        if one_scale:
            chain.append(("ReduceMin", [top], "one", {"keepdims": 0}))
            top = f"{name}/one"
        chain.append(("Mul", [f"{name}/real", top], "rows", {}))
        nodes += [helper.make_node(op, given, [f"{name}/{made_}"], **more) for op, given, made_, more in chain]
        last = [f"{name}/rows", node.input[2]] if biased else [f"{name}/rows"]
        nodes.append(helper.make_node("Add" if biased else "Identity", last, [out]))
    assert changed, "nothing was quantized"
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path]:
    """A source with `float32.onnx`, `int8.onnx` and `wrong.onnx`."""
    folder = tmp_path_factory.mktemp("agreement")
    sizes = ("layers=2", "hidden=60", "heads=5", "vocab=61", "max_positions=20")
    made_from = builtin.builtin_source("encoder-absolute", task=None, settings_given=sizes)
    graph = exported(made_from, folder)
    for name, proto in (
        ("float32", graph),
        ("int8", quantized(graph)),
        ("wrong", quantized(graph, one_scale=True)),
    ):
        onnx.save(proto, folder / f"{name}.onnx")
    return made_from, folder


@pytest.fixture(scope="module")
def proof(model: tuple[Source, Path]) -> tuple[Report, SampleWriter]:
    made_from, folder = model
    writer = SampleWriter()
    files = folder / "int8.onnx", folder / "float32.onnx"
    return agree(made_from, *files, INT8, threads=1, sample=writer), writer


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
    np.testing.assert_allclose(np.sort(found.values), np.sort(expected), rtol=1e-12)
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.least == pytest.approx(min(expected))
    assert found.top_1 == pytest.approx(np.mean([np.argmax(a) == np.argmax(b) for a, b in pairs]))
    assert len(expected) == 11


def test_outputs_with_few_elements_are_one_vector() -> None:
    rng = np.random.default_rng(1)
    truth = rng.standard_normal((3, 7))
    y = truth + rng.standard_normal(truth.shape)
    found = cosines(y, truth, OutputSpec(name="start_logits", axes=[BATCH, SEQUENCE]), None)
    dot = (y * truth).sum() / np.sqrt((y * y).sum() * (truth * truth).sum())
    np.testing.assert_allclose(found.values, [dot])
    assert found.top_1 == pytest.approx(np.mean(y.argmax(-1) == truth.argmax(-1)))
    nothing = cosines(y[:1], truth[:1], OutputSpec(name="start_logits", axes=[BATCH, SEQUENCE]), None)
    assert nothing.mean is None


def test_perplexity_is_that_of_the_softmax() -> None:
    logits = np.random.default_rng(2).standard_normal((4, 9)) * 5
    ids = [3, 8, 0, 2]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log([probabilities[0, 8], probabilities[1, 0], probabilities[2, 2]]).sum()
    assert surprise(logits, ids) == pytest.approx(expected)


def test_every_length_and_way_to_call_is_in_the_subset() -> None:
    decoder = builtin.builtin_source(
        "decoder-alibi", task=None, settings_given=("layers=1", "hidden=60", "heads=5", "vocab=61")
    )
    points = grid(decoder.envelope, decoder.inputs, decoder.plan)
    chosen = subset(points)
    kept, whole = ([p for p in each if not p.refusal] for each in (chosen, points))
    assert len(kept) < len(whole) / 3
    assert {p.length for p in kept} == {p.length for p in whole}
    assert {p.padding for p in kept} == {p.padding for p in whole}
    assert {(p.batch > 1, len(p.calls), p.numbered) for p in kept} >= {(False, 0, False), (True, 3, False)}
    assert {len(p.calls) for p in kept} == {len(p.calls) for p in whole}
    assert [p for p in chosen if p.refusal] == [p for p in points if p.refusal]


def test_a_right_graph_is_proven_in_float32_and_agrees(proof: tuple[Report, SampleWriter]) -> None:
    report, _ = proof
    assert report.passed, report.describe()
    assert report.float32 is not None
    assert report.float32.summary().complete
    assert {p.length for p in report.points} == {p.length for p in report.float32.points}
    (found,) = report.agreement.values()
    assert 0.999 < found.cosine < 1 - 1e-7
    assert report.verdict.startswith("proven in float32, int8 agrees: mean cosine 0.999")
    assert Report.from_json(report.to_json()).verdict == report.verdict
    assert "the float32 graph" in report.to_text()
    assert any(item.name == "later tokens change nothing" or "padding" in item.name for item in report.invariants)


def test_one_scale_for_all_rows_is_refused(model: tuple[Source, Path]) -> None:
    made_from, folder = model
    report = compare(made_from, folder / "wrong.onnx", None, INT8, lengths=LENGTHS, threads=1)
    assert not report.passed
    failed = [p for p in report.points if p.verdict == "fail" and p.length > 1]
    assert failed
    assert all(p.cosine is not None and p.cosine < LIMITS["int8"].cosine for p in failed if p.error is not None)
    neighbours = [item for item in report.invariants if item.name == "batch neighbours do not change a row"]
    assert {item.verdict for item in neighbours} == {"fail"}


def test_the_float32_graph_must_be_right_too(model: tuple[Source, Path]) -> None:
    made_from, folder = model
    report = agree(made_from, folder / "int8.onnx", folder / "wrong.onnx", INT8, lengths=LENGTHS, threads=1)
    assert not report.passed
    assert report.verdict == "NOT proven: parity was missed"
    assert report.describe().startswith("the float32 graph that int8 is made from: ")


def test_the_stored_sample_knows_broken_graphs(
    model: tuple[Source, Path], proof: tuple[Report, SampleWriter], tmp_path: Path
) -> None:
    _, folder = model
    proof[1].save(tmp_path, SAMPLE)
    for name, good in (("int8", True), ("wrong", False)):
        (tmp_path / "model.onnx").write_bytes((folder / f"{name}.onnx").read_bytes())
        report = check_sample(tmp_path, threads=1)
        assert report.precision == "int8"
        assert report.passed == good, report.describe()


@pytest.mark.parametrize(("last", "verdict"), [(0.9989, "pass"), (0.99, "fail")])
def test_agreement_must_not_fall_with_length(last: float, verdict: str) -> None:
    def point(length: int, cosine: float) -> Point:
        given = {"provider": "cpu", "precision": "int8", "padding": "none", "batch": 1, "verdict": "pass", "note": ""}
        return Point(
            length=length,
            output="x",
            error=0.1,
            torch_error=None,
            torch_worst=None,
            tolerance=0.5,
            cosine=cosine,
            **given,  # type: ignore[arg-type]
        )

    (found,) = fall([point(17, 0.9992), point(64, 0.999), point(257, last)])
    assert found.verdict == verdict
    assert found.length == 257
    assert list(fall([point(64, 0.999), point(65, 0.1)])) == []


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
    done = posexport.convert(
        "decoder-rope",
        folder / "bundle",
        settings=SETTINGS,
        precision="int8",
        tokenizer=folder / "tokenizer.json",
        texts=corpus,
        lengths=[1, 17, 65],
        threads=1,
    )
    assert done.good, done.to_text()
    assert done.verdict == "checked at 1, 17, 65 tokens, not proven"
    return folder / "bundle"


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


def test_verify_rebuilds_the_float32_graph(bundle: Path) -> None:
    report = posexport.verify(bundle, "decoder-rope", lengths=[1, 17], threads=1)
    assert report.passed, report.describe()
    assert report.precision == "int8"
    assert report.float32 is not None
    assert report.float32.precision == "fp32"
    assert posexport.verify(bundle, threads=1).verdict == "checked on the stored sample"
    within = posexport.verify(bundle, "decoder-rope", lengths=[17], threads=1, tolerance=0.5)
    assert within.float32 is None
    assert within.verdict == "within 0.5"


def test_texts_cost_nothing_in_float32(tmp_path: Path) -> None:
    with pytest.raises(
        PosexportError, match="--texts measures what a precision costs against float32, got --precision"
    ):
        posexport.convert("encoder-rope", tmp_path / "b", texts=tmp_path / "t")


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


def test_precisions_are_candidates_of_one_model(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    float32 = tmp_path / "fp32" / "bundle"
    posexport.convert("decoder-rope", float32, settings=SETTINGS, tokenizer=bundle / TOKENIZER, verify=False)
    made = {"fp32": float32.parent, "int8": bundle.parent}

    def make(recipe: Recipe, _: object) -> Export:
        return Export(folder=made[recipe.arguments[recipe.arguments.index("--precision") + 1]], seconds=1, peak=None)

    monkeypatch.setattr("posexport.bench.models.make", make)
    asked = case(
        ["decoder-rope"],
        [],
        third_party=False,
        lengths=[],
        batches=[],
        pasts=[],
        remark=lambda _: None,
        precisions=["fp32", "int8"],
    )
    first, second = asked.candidates
    assert [(each.name, each.precision) for each in asked.candidates] == [
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


def test_an_encoding_is_compared_in_every_precision(tmp_path: Path) -> None:
    setup = Setup(steps=2, hidden=20, heads=5, feedforward=28, rows=6, asked_rows=12, timed_rows=2, timed_runs=2)
    setup = msgspec.structs.replace(setup, precisions=["int8"])
    path = tmp_path / "rope.onnx"
    result = one("rope", setup, path)
    cost = measure(path, path, setup)
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
