"""The logits of the last tokens alone equal the last of all, at every optimisation level; where they cannot be had."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from posexport.base.spec import NUM_LOGITS
from posexport.base.targets.target import Target
from posexport.conversion.export.build import build
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.last_logits import LastLogits
from posexport.proof.choose import ProofOptions, prove_model
from posexport.run.providers import LEVELS, make_session
from posexport.sources import builtin
from posexport.sources.source import Source
from tests.small import recipe
from tests.tolerances import agree

SIZES = ("layers=1", "hidden=20", "heads=5", "feedforward=16", "vocab=61")
HIDDEN = '<ir_version: 10, opset_import: ["" : 18]> g (float[B, T, 4] x) => (float[B, T, 6] logits{more})'
WEIGHTS = "<float[4, 6] head = {0.5, 1, -2, 3, 1, 2, 0.25, -1, 1, 1, 2, -3, 1, 0, 1, 2, 3, 4, 5, 1, 1, -1, 2, 0}{more}>"


def decoder() -> Source:
    return builtin.builtin_source("decoder-rope", task=None, settings_given=SIZES)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "model.onnx"
    build(decoder(), path, recipe())
    return path


def applied(body: str, outputs: str = "", weights: str = "") -> tuple[ir.Model, tuple[str, ...]]:
    """A graph from the last layer's ``x`` to logits after the pass, and why it does not apply."""
    text = HIDDEN.replace("{more}", outputs) + WEIGHTS.replace("{more}", weights) + body
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    names = [value.name or "" for value in model.graph.outputs]
    result = LastLogits().apply(model, Context(Target(steps=True), output_names=names))
    assert (result.nodes == 1) is not bool(result.rejected)
    return model, result.rejected


def run(model: ir.Model, x: np.ndarray, number: int | None = None) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    more = {} if number is None else {NUM_LOGITS: np.array(number)}
    return np.asarray(session.run(["logits"], {"x": x, **more})[0])


@pytest.mark.parametrize("level", LEVELS)
def test_the_last_logits_are_those_of_all(level: str, exported: Path) -> None:
    session = make_session(exported, level=level, threads=1)
    assert [value.name for value in session.get_overridable_initializers()][-1] == NUM_LOGITS
    rng = np.random.default_rng(0)
    feeds = {"input_ids": rng.integers(0, 61, (2, 7)), "attention_mask": np.ones((2, 9), np.int64)}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = rng.standard_normal((2, value.shape[1], 2, value.shape[3])).astype(np.float32)
    names = [value.name for value in session.get_outputs()]
    all_logits, *cache = session.run(names, feeds)
    assert all_logits.shape == (2, 7, 61)
    # a scalar from most clients, one element of one axis from onnxruntime-genai
    for number in (np.array(0), np.array(1), np.array([3]), np.array(7), np.array(40)):
        logits, *same_cache = session.run(names, {**feeds, NUM_LOGITS: number})
        expected = all_logits[:, -int(number.item()) :]
        assert logits.shape == expected.shape
        agree(logits, expected, "encoding", np.float32)
        for one, other in zip(same_cache, cache, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("{ logits = MatMul(x, head) }", ""),
        (
            "{ raw = MatMul(x, head) small = Div(raw, cap) bent = Tanh(small) logits = Mul(bent, cap) }",
            ", float cap = {30.0}",
        ),
        ("{ raw = MatMul(x, head) logits = Add(raw, bias) }", ", float[6] bias = {1, 2, 3, 4, 5, 6}"),
        (
            "{ a = MatMul(x, dense) b = Sigmoid(a) c = LayerNormalization(b, scale) logits = MatMul(c, head) }",
            ", float[4] scale = {1, 2, 1, 3}, float[4, 4] dense = {1, 2, 3, 4, 4, 3, 2, 1, 0, 1, 0, 1, 1, 1, 2, 2}",
        ),
        (
            "{ raw = MatMul(x, head) logits = Where(known, raw, low) }",
            ", bool[6] known = {1, 1, 0, 1, 1, 0}, float low = {-9.0}",
        ),
    ],
    ids=["head", "soft-capping", "bias", "two projections", "unknown words"],
)
def test_forms_of_heads(body: str, weights: str) -> None:
    model, _ = applied(body, weights=weights)
    first = next(node for node in model.graph if node.op_type == "MatMul")
    assert first.inputs[0] is not None
    assert first.inputs[0].producer() is not None, "the first projection reads all tokens"
    x = np.random.default_rng(1).standard_normal((2, 5, 4)).astype(np.float32)
    all_logits = run(model, x)
    assert all_logits.shape == (2, 5, 6)
    agree(run(model, x, 2), all_logits[:, -2:], "encoding", np.float32)


@pytest.mark.parametrize(
    ("body", "outputs", "reason"),
    [
        (
            "{ raw = MatMul(x, head) logits = CumSum(raw, axis) }",
            "",
            "CumSum between the last projection and the logits is not known to compute tokens apart",
        ),
        (
            "{ a = Mul(x, x) raw = MatMul(a, head) best = ReduceMax(raw) logits = Sub(raw, raw) }",
            "",
            "Sub between the last projection and the logits is not known to compute tokens apart",
        ),
        (
            "{ logits = MatMul(x, head) best = ReduceMax<keepdims = 0>(logits) }",
            ", float best",
            "more than the logits depends on the output of MatMul",
        ),
    ],
    ids=["tokens mixed", "two operands", "read elsewhere"],
)
def test_where_all_logits_are_needed(body: str, outputs: str, reason: str) -> None:
    model, reasons = applied(body, outputs, ", int64 axis = {1}")
    assert reasons == (reason,)
    assert [value.name for value in model.graph.inputs] == ["x"]


@pytest.mark.parametrize("off", [False, True])
def test_the_proof_reads_the_last_logits(off: bool, exported: Path, tmp_path: Path) -> None:
    model = ir.load(exported)
    start = next(node for node in model.graph if node.op_type == "Slice" and "last_logits" in (node.name or ""))
    if off:  # one token too many
        number = next(value for value in model.graph.inputs if value.name == NUM_LOGITS)
        two = ir.node("Mul", [number, number], outputs=[ir.Value(name="squared")])
        model.graph.insert_before(model.graph[0], two)
        for user, place in list(number.uses()):
            if user is not two:
                user.replace_input_with(place, two.outputs[0])
        assert start.graph is model.graph
    path = tmp_path / "model.onnx"
    ir.save(model, path)
    report = prove_model(decoder(), path, ProofOptions(lengths=[9], threads=1))
    verdicts = {one.name.split(":")[0]: one.verdict for one in report.invariants if NUM_LOGITS in one.name}
    expected = "fail" if off else "pass"
    assert verdicts == {f"{NUM_LOGITS}=1": "pass", f"{NUM_LOGITS}=3": expected, f"{NUM_LOGITS}=1048576": "pass"}
    assert report.passed is not off
