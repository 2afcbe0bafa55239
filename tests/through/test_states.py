"""Models with states between tokens: converted and proven, and proofs that fail where a state is wrong.

All types are in ci/through/checkpoints.yaml and tests/through/test_types.py; here few, at few lengths.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnxruntime import InferenceSession, OrtValue
from torch import Tensor

import posexport
from posexport.base.spec import State
from posexport.conversion.export import build
from posexport.conversion.export.trace import trace
from posexport.errors import PosexportError
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs
from posexport.graph.lowering.states import conv, scan
from posexport.inspect.explain.explanation import explain
from posexport.proof.invariants.states import WAYS, _compared, _Read
from posexport.run.ort_values import run_bound
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.torch_fixes.default_dtype import computing_in
from tests.tolerances import agree

pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

from ci.through import tiny
from posexport.through import states

#: a recurrence and a convolution; a convolution and attention; experts, attention and the delta rule; a bias of scores
SHORT = {"mamba2": "cpu", "lfm2": "portable", "qwen3_next": "portable", "inkling_text": "portable"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a type, made once."""
    folder = tmp_path_factory.mktemp("states")

    def made(kind: str) -> Path:
        if not (folder / kind).exists():
            tiny.make(folder / kind, tiny.table()[kind])
        return folder / kind

    return made


def convert(source: Path, bundle: Path, **options: Any) -> posexport.Conversion:
    return posexport.convert(source, bundle, **{"lengths": [1, 17], "threads": 1, "target": "portable", **options})


@pytest.fixture(scope="module")
def converted(checkpoint: Callable[[str], Path]) -> Callable[[str], tuple[posexport.Conversion, Path]]:
    """A type's conversion and bundle, made once."""

    @functools.cache
    def made(kind: str) -> tuple[posexport.Conversion, Path]:
        bundle = checkpoint(kind).with_name(f"{kind}-bundle")
        return convert(checkpoint(kind), bundle, target=SHORT[kind]), bundle

    return made


@pytest.fixture(scope="module")
def again(checkpoint: Callable[[str], Path]) -> Callable[..., ir.Model]:
    """In place of tracing mamba2, which is most of the time of a conversion: a copy of its graph."""
    traced = trace(load_source(str(checkpoint("mamba2")), LoadOptions()), 18)

    def copy(*_: object) -> ir.Model:
        model = traced.clone()
        model.meta.update(traced.meta)
        return model

    return copy


@pytest.mark.all(but=("lfm2",))
@pytest.mark.parametrize("kind", SHORT)
def test_a_type_with_states_is_right_and_generates(
    kind: str, converted: Callable[[str], tuple[posexport.Conversion, Path]]
) -> None:
    done, bundle = converted(kind)
    assert done.good, done.to_text()
    assert not done.remarks
    assert done.report is not None
    verdicts = {invariant.name: invariant.verdict for invariant in done.report.invariants}
    assert {verdict for name, verdict in verdicts.items() if name.partition(":")[0] in WAYS} == {"pass"}
    assert verdicts["every state is changed and read"] == "pass"
    session = posexport.load(bundle)
    # one record of each state, float32, behind the cache
    kept = [spec for spec in session.inputs if spec.role == "state"]
    outputs = {spec.name: spec for spec in session.outputs}
    assert {spec.name.partition(".")[0] for spec in kept} <= {"past_conv", "past_recurrent"}
    for spec in kept:
        assert isinstance(spec.state, State)
        assert (spec.state.reset, spec.state.padding, spec.dtype) == (0.0, "unchanged", "float32")
        assert outputs[spec.state.output].axes == spec.axes
    assert "states between tokens" in repr(session)
    # rows of different lengths, in chunks, and beams give what each row alone gives
    prompts = [[5, 9, 11, 2, 8, 30, 7], [17, 3], [44, 6, 1, 20]]
    rows = session.generate(prompts, max_new_tokens=7)
    alone = [session.generate([prompt], max_new_tokens=7).completions[0].tokens for prompt in prompts]
    assert [completion.tokens for completion in rows.completions] == alone
    chunked = session.generate(prompts, max_new_tokens=7, prefill_chunk_size=2)
    assert [completion.tokens for completion in chunked.completions] == alone
    beams = session.generate(prompts, max_new_tokens=4, num_beams=3)
    each = [session.generate([prompt], max_new_tokens=4, num_beams=3).completions[0].tokens for prompt in prompts]
    assert [completion.tokens for completion in beams.completions] == each
    # some rows end early and are dropped
    end = alone[0][2]
    dropped = session.generate(prompts, max_new_tokens=7, eos_token_id=end)
    cut = [row[: row.index(end)] if end in row else row for row in alone]
    assert [completion.tokens for completion in dropped.completions] == cut


@pytest.mark.all
def test_states_of_a_call_go_on_in_the_next(
    converted: Callable[[str], tuple[posexport.Conversion, Path]],
) -> None:
    session = posexport.load(converted("mamba2")[1])
    ids = np.array([[5, 9, 11, 2, 8], [17, 3, 1, 4, 2]])
    whole = session.run({"input_ids": ids})
    first = session.run({"input_ids": ids[:, :2]})
    past = {spec.name: first[spec.state.output] for spec in session.inputs if isinstance(spec.state, State)}
    ones = np.ones_like(ids)
    rest = session.run({"input_ids": ids[:, 2:], "attention_mask": ones, **past})
    agree(rest["logits"], whole["logits"][:, 2:], "model in float32", np.float32)
    with pytest.raises(PosexportError, match=r"missing input past_conv\.1"):
        session.run({"input_ids": ids, "past_conv.0": past["past_conv.0"]})
    with pytest.raises(PosexportError, match=r"past_conv\.0 .*NaN|past_conv\.0 holds nan"):
        session.run({"input_ids": ids, **past, "past_conv.0": np.full_like(past["past_conv.0"], np.nan)})


@pytest.mark.all(but=("lfm2",))
@pytest.mark.parametrize("kind", ["mamba2", "lfm2"])
def test_padding_between_tokens_changes_nothing(
    kind: str, converted: Callable[[str], tuple[posexport.Conversion, Path]]
) -> None:
    session = posexport.load(converted(kind)[1])
    ids, mask = np.array([[5, 9, 1, 3, 11, 2, 8]]), np.array([[1, 1, 0, 0, 1, 0, 1]])
    padded = session.run({"input_ids": ids, "attention_mask": mask})["logits"][mask == 1]
    agree(padded, session.run({"input_ids": ids[mask == 1][None]})["logits"][0], "model in float32", np.float32)


@pytest.mark.parametrize("kind", ["lfm3", "inkling_text"])
def test_a_sliding_window_counts_tokens_and_no_padding(kind: str, checkpoint: Callable[[str], Path]) -> None:
    """A window of 6 tokens, with more padding between tokens than that; Inkling's bias counts tokens, too."""
    module = load_source(str(checkpoint(kind)), LoadOptions()).module.double()
    with computing_in(torch.float64):
        ids = torch.randint(1, 64, (2, 30), generator=torch.Generator().manual_seed(0))
        mask = torch.ones_like(ids)
        mask[0, 9:16], mask[1, :5], mask[1, 11:13], mask[1, 28:] = 0, 0, 0, 0
        with torch.inference_mode():
            logits = module(input_ids=ids, attention_mask=mask)[0]
            for row, is_token in enumerate(mask == 1):
                tokens = ids[row, is_token][None]
                alone = module.uncached_logits(tokens, torch.ones_like(tokens))[0]
                agree(logits[row, is_token].numpy(), alone.numpy(), "model", np.float64)


@pytest.mark.all(but=("cuda",))
@pytest.mark.parametrize(("target", "operator"), [("portable", "Scan"), ("cuda", "LinearAttention")])
def test_states_are_float32_in_half_precision(
    target: str,
    operator: str,
    tmp_path: Path,
    checkpoint: Callable[[str], Path],
    again: Callable[..., ir.Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "trace", again)
    done = convert(checkpoint("mamba2"), tmp_path / "half", target=target, precision="fp16", lengths=[1], opset=18)
    assert done.manifest is not None
    model = ir.load(tmp_path / "half" / "model.onnx")
    names = [spec.name for spec in done.manifest.inputs if spec.role == "state"]
    assert len(names) == 4
    values = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
    assert {values[name].dtype for name in names} == {ir.DataType.FLOAT}
    assert {values[name.replace("past", "present")].dtype for name in names} == {ir.DataType.FLOAT}
    # nor is the state of a recurrence rounded on its way through the graph
    (body,) = (function for function in model.functions.values() if function.name.endswith("Recurrence"))
    assert operator in {node.op_type for node in body}
    casts = [node for node in ir.traversal.RecursiveGraphIterator(body) if node.op_type == "Cast"]
    assert casts
    assert {node.attributes["to"].value for node in casts} == {int(ir.DataType.FLOAT)}
    for node in model.graph:
        if node.op_type == body.name:
            assert str(node.inputs[3].name).startswith("past_recurrent")
            assert str(node.outputs[1].name).startswith("present_recurrent")


@pytest.mark.all
def test_a_static_kv_cache_beside_states(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    done = convert(checkpoint("lfm2"), tmp_path / "static", target="cpu", cache="static", lengths=[2])
    assert done.good, done.to_text()


def decays_at_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding updates no state, and the decay goes on: the definition and the graph share the mistake."""
    plain = states._recurrence

    def recurrence(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *rest: Any) -> Tensor:
        call = states.current()
        padded = 0 if call is None else 1 - states._mask(k, k.shape[1])
        return plain(q, k, v, decay - 0.5 * padded[..., None] if call is not None else decay, *rest)

    monkeypatch.setattr(states, "_recurrence", recurrence)


def reads_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window of the graph's convolution has padded tokens in it."""
    monkeypatch.setattr(conv, "_padding_first", lambda g, inputs, *_: g.Identity(inputs))


def window_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph keeps the inputs before the last one."""
    monkeypatch.setattr(conv, "_last_inputs", lambda g, inputs, new: g.slice(inputs, g.Sub(new, [1]), [-1], 2))


def never_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph begins with a state that is not zero."""
    plain = scan.TokenScan.build

    def build(self: scan.TokenScan, g: Builder, spec: Any, x: Inputs, target: Any) -> Any:
        return plain(self, g, spec, {**x, "past": g.Add(x["past"], g.CastLike(0.25, x["past"]))}, target)

    monkeypatch.setattr(scan.TokenScan, "build", build)


def always_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph forgets the state of the call before, as a second chunk of Mamba does in transformers."""
    plain = scan.TokenScan.build

    def build(self: scan.TokenScan, g: Builder, spec: Any, x: Inputs, target: Any) -> Any:
        return plain(self, g, spec, {**x, "past": g.Mul(x["past"], g.CastLike(0.0, x["past"]))}, target)

    monkeypatch.setattr(scan.TokenScan, "build", build)


def constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call leaves the state as it was."""
    plain = scan.TokenScan.build

    def build(self: scan.TokenScan, g: Builder, spec: Any, x: Inputs, target: Any) -> Any:
        return plain(self, g, spec, x, target)[0], g.Identity(x["past"])

    monkeypatch.setattr(scan.TokenScan, "build", build)


@pytest.mark.all(but=("decays_at_padding", "never_reset"))
@pytest.mark.parametrize(
    ("mutant", "failing"),
    [
        (decays_at_padding, "rows with tokens behind padding"),
        (reads_padding, "rows with tokens behind padding"),
        (window_off_by_one, "one row token by token"),
        (never_reset, "one row token by token"),
        (always_reset, "every state is changed and read"),
        (constant, "every state is changed and read"),
    ],
)
def test_a_wrong_state_fails_the_proof(
    mutant: Callable[[pytest.MonkeyPatch], None],
    failing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Callable[[str], Path],
    again: Callable[..., ir.Model],
) -> None:
    mutant(monkeypatch)
    if mutant is not decays_at_padding:
        monkeypatch.setattr(build, "trace", again)
    done = convert(checkpoint("mamba2"), tmp_path / "bundle", lengths=[2])
    assert not done.good
    assert done.report is not None
    failed = [invariant.name for invariant in done.report.invariants if invariant.verdict == "fail"]
    assert any(name.startswith(failing) for name in failed), failed
    if mutant is decays_at_padding:  # no point sees it: the definition in float64 has the mistake too
        assert all(point.verdict != "fail" for point in done.report.points)


@pytest.mark.parametrize(("off", "verdict"), [(0.0, "pass"), (1e-3, "fail")])
def test_states_after_the_last_call_count(off: float, verdict: str) -> None:
    """No later token reads these."""
    logits, state = np.ones((5, 7)), np.linspace(1, 2, 24).reshape(2, 3, 4)
    right = _Read({"logits": logits, "present_recurrent.0": state})
    wrong = _Read({"logits": logits, "present_recurrent.0": state + off})
    axes = {"logits": ["batch", "sequence", 7], "present_recurrent.0": ["batch", 3, 4]}
    judge: Any = SimpleNamespace(judge=SimpleNamespace(tolerance=lambda *_: 1e-5))
    found = _compared("split", [wrong, right, right], right, axes, judge, {"logits": 1.0})
    assert found.verdict == verdict
    assert off == 0 or found.output == "present_recurrent.0"


def test_a_second_judge_reads_each_row_alone(checkpoint: Callable[[str], Path]) -> None:
    """The functions that replace transformers' give what transformers computes, in float64, at every length."""
    import transformers

    for kind in ("mamba", "qwen3_5_text", "kimi_linear"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint(kind), dtype=torch.float64, experts_implementation="eager"
        ).eval()
        ids = torch.randint(0, 64, (2, 71), generator=torch.Generator().manual_seed(0))
        with torch.no_grad(), computing_in(torch.float64):
            wanted = model(input_ids=ids, use_cache=False).logits
            with states.keeping(model) as kept:
                logits = model(input_ids=ids, use_cache=False).logits
        assert kept.tensors
        agree(logits.numpy(), wanted.numpy(), "model", np.float64, 8)


def test_every_layer_with_a_state_has_a_function() -> None:
    names: Mapping[str, object] = states._FUNCTIONS
    assert names.keys() > states._STATEFUL.keys()


@pytest.mark.all(but=("lfm2",))
@pytest.mark.parametrize("kind", ["mamba2", "lfm2"])
def test_one_buffer_is_past_and_present(
    kind: str, converted: Callable[[str], tuple[posexport.Conversion, Path]]
) -> None:
    """ONNX Runtime writes a state into the buffer that it reads, in a step and in a call of many tokens."""
    session = InferenceSession(converted(kind)[1] / "model.onnx", providers=["CPUExecutionProvider"])
    rng, ids = np.random.default_rng(0), np.array([[5, 9, 11, 2, 8, 30, 7], [17, 3, 1, 4, 2, 6, 9]])
    kept = [value for value in session.get_inputs() if value.name.startswith(("past_conv", "past_recurrent"))]
    cache = [value for value in session.get_inputs() if value.name.startswith("past_key_values")]
    for new in (ids[:, :1], ids, np.where(ids > 8, 0, ids)):
        mask = (new != 0).astype(np.int64)
        fed = {"input_ids": new, "attention_mask": mask}
        if any(value.name == "position_ids" for value in session.get_inputs()):
            fed["position_ids"] = np.maximum(mask.cumsum(1) - 1, 0)
        fed |= {value.name: np.zeros((2, value.shape[1], 0, value.shape[3]), np.float32) for value in cache}
        past = {value.name: rng.standard_normal((2, *value.shape[1:])).astype(np.float32) for value in kept}
        names = ["logits", *(name.replace("past", "present") for name in past)]
        apart = session.run(names, {**fed, **past})
        buffers = {name: OrtValue.ortvalue_from_numpy(array.copy()) for name, array in past.items()}
        targets = dict(zip(names, ["cpu", *buffers.values()], strict=True))
        together = run_bound(session, fed, buffers, targets)
        for name, wanted, value in zip(names, apart, together, strict=True):
            np.testing.assert_array_equal(value.numpy(), wanted, err_msg=name)
        for wanted, buffer in zip(apart[1:], buffers.values(), strict=True):
            np.testing.assert_array_equal(buffer.numpy(), wanted)


def test_explain_fills_cache_and_states(converted: Callable[[str], tuple[posexport.Conversion, Path]]) -> None:
    found = explain(converted("lfm2")[1], past=5)
    assert found.call.endswith("past 5")
    assert found.parts[0].kernels_ms > 0


@pytest.mark.all
@pytest.mark.parametrize(("kind", "target"), [("mamba2", "cpu"), ("falcon_mamba", "cpu"), ("qwen3_5_text", "portable")])
def test_4096_tokens(kind: str, target: str, tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """By the float64 reference in chunks of tokens, which is compared with the formula in tests/graph/ops."""
    done = convert(checkpoint(kind), tmp_path / "long", target=target, lengths=[4096])
    assert done.good, done.to_text()
