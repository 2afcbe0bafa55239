"""A prefill without padding in its linear layers: the same values for real tokens, and for every later step."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import posexport
from posexport.base.spec import BATCH, CAPACITY, PAST, SEQUENCE, TOTAL
from posexport.base.targets.target import Target
from posexport.conversion.export.trace import trace
from posexport.graph.lowering import functions
from posexport.graph.passes.graph_pass import Context
from posexport.graph.passes.padding import prefill
from posexport.graph.passes.pipeline import run
from posexport.sources import builtin
from posexport.sources.prepare import with_kv_cache
from tests.graph.passes.test_unpadding import PADDED
from tests.small import by_attention, in_short, shared
from tests.tolerances import agree

CPU = Target("cpu", 24, steps=True)
CASES = [(name, cache) for name in by_attention("decoder-") for cache in ("dynamic", "static")]
IN_SHORT = {("decoder-rope", "static")}


@functools.cache
def _traced(name: str, cache: str) -> tuple[Any, onnx.ModelProto]:
    source = with_kv_cache(builtin.builtin_source(name, task=None, settings_given=shared(name)), cache, "at-write")  # type: ignore[arg-type]
    return source, ir.to_proto(trace(source, CPU.opset))


def _session(model: ir.Model) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _model(name: str, cache: str, *, dropped: bool) -> ir.Model:
    model = ir.from_proto(_traced(name, cache)[1])
    model.ir_version = 10
    found = run(model, Context(CPU), without={} if dropped else {"unpadding": "a test"})
    assert found["unpadding"].nodes == 2 * dropped or "cope" in name, found["unpadding"].rejected
    functions.attach(model, CPU)
    return model


def _feeds(name: str, cache: str, mask: np.ndarray, past: int) -> dict[str, np.ndarray]:
    """``mask`` of the new tokens, behind ``past`` real ones."""
    source, draw = _traced(name, cache)[0], np.random.default_rng(5)
    batch, new = mask.shape
    sizes = {BATCH: batch, SEQUENCE: new, PAST: past, TOTAL: past + new, CAPACITY: past + new + 2}
    given = {}
    for spec in source.inputs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
        if spec.role == "mask":
            given[spec.name] = np.concatenate([np.ones((batch, past), np.int64), mask.astype(np.int64)], 1)
        elif spec.role == "tokens":
            given[spec.name] = draw.integers(0, 61, shape)
        elif spec.role == "cache":
            given[spec.name] = draw.standard_normal(shape).astype(np.float32)
    return given


@pytest.mark.parametrize(("name", "cache"), in_short(CASES, lambda *case: case in IN_SHORT))
def test_real_tokens_have_the_same_values(name: str, cache: str) -> None:
    kept, session = (_session(_model(name, cache, dropped=dropped)) for dropped in (False, True))
    for past in (0, 5):
        for mask, _ in PADDED.values():
            given = _feeds(name, cache, mask, past)
            want, got = kept.run(None, given), session.run(None, given)
            if mask.any():
                agree(got[0][mask], want[0][mask], "encoding", np.float32)
            leaves_out = name != "decoder-cope" and mask.any() and (~mask).sum() * 8 >= mask.size
            if leaves_out:
                assert not got[0][~mask].any(), "logits of padding"
            for theirs, ours in zip(want[1:], got[1:], strict=True):
                before, now = (each.transpose(0, 2, 1, 3)[:, past : past + mask.shape[1]] for each in (theirs, ours))
                if mask.any():
                    agree(now[mask], before[mask], "encoding", np.float32)
                if leaves_out:
                    assert not now[~mask].any(), "keys and values of padding"
                assert (theirs[:, :, :past] == ours[:, :, :past]).all()


def test_a_step_has_no_branch_for_each_layer() -> None:
    """An If in every layer would cost a step more than all that is gathered and put back."""
    model = _model("decoder-rope", "static", dropped=True)
    branches = [value.name for node in model.graph if node.op_type == "If" for value in node.outputs]
    assert branches == ["logits"]
    # and rows are put back by one node
    put_back = [node.outputs[0] for node in model.graph if node.op_type == "ScatterND"]
    readers = {user.op_type for value in put_back for user, _ in value.uses()}
    assert put_back
    assert "Reshape" not in readers


def test_rows_that_are_put_back_at_another_place_are_not_proven(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    right = prefill._Padding.put_back

    def shifted(padding: prefill._Padding, rows: ir.Value, zeros: ir.Value) -> ir.Value:
        """As if real tokens stood one place later, the last one first."""
        g, places = padding.g, padding.places
        later = g.Concat(g.slice(places, [1], [2**31], 0), g.slice(places, [0], [1], 0), axis=0)
        return right(replace(padding, places=later), rows, zeros)

    monkeypatch.setattr(prefill._Padding, "put_back", shifted)
    found = posexport.convert(
        "decoder-nope", tmp_path / "out", target="cpu", lengths=[17], settings=shared("decoder-nope")
    )
    assert found.report is not None
    assert not found.report.passed
