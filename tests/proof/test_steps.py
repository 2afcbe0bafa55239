"""Greedy steps as a part of the proof, and the promise that later tokens change nothing: both can fail."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from posexport.base.refusal import Refusal
from posexport.base.spec import LengthContract
from posexport.proof.invariants import rollout as steps
from posexport.proof.judges import Criterion
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.report.point_table import to_text
from posexport.proof.report.points import Invariant
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import Runner
from posexport.sources import builtin
from posexport.sources.source import Source
from tests.parity_models import exported, prove
from tests.parity_models import source as encoder
from tests.tolerances import agree, allowed

SIZES = ("layers=2", "hidden=20", "heads=5", "feedforward=37", "vocab=61", "tied=false")
LATER = "later tokens change nothing"


def decoder(name: str, *settings: str, task: str | None = None) -> Source:
    return builtin.builtin_source(f"decoder-{name}", task=task, settings_given=(*SIZES, *settings))


def proof(source: Source, folder: Path, model_of: Source | None = None, lengths: tuple[int, ...] = (3, 17)) -> Report:
    model = exported(model_of or source, folder).SerializeToString()
    return prove(source, model, lengths=lengths, threads=1)


def stepped(report: Report) -> list[Invariant]:
    return [item for item in report.invariants if "greedy" in item.name]


@pytest.fixture(scope="module")
def rope(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return proof(decoder("rope"), tmp_path_factory.mktemp("rope"))


@pytest.mark.all
def test_a_decoders_proof_has_64_steps(rope: Report) -> None:
    assert rope.passed
    logits, free = stepped(rope)
    assert (logits.name, free.name) == (
        "logits of 64 decode steps on PyTorch's greedy tokens",
        "64 greedy decode steps choose PyTorch's tokens",
    )
    assert logits.length == free.length == 17 + 63
    assert logits.error is not None
    assert logits.tolerance is not None
    assert 0 < logits.error <= logits.tolerance <= allowed("model in float32", np.float32)
    assert (free.verdict, free.note) == ("pass", "192 of 192 tokens are certain")
    assert "ok: 64 greedy decode steps choose PyTorch's tokens (length 80)" in to_text(rope)


@pytest.mark.all
def test_positions_left_out_take_the_tokens_sizes(tmp_path: Path) -> None:
    """ONNX Runtime reused a buffer of the default's size, [1, 1], for one of [3, 17]."""
    report = proof(decoder("sparse"), tmp_path)
    assert report.passed, report.describe()


def test_the_tokens_are_varied_enough_to_mean_something() -> None:
    source = decoder("absolute")
    of = steps.ports_of(source.inputs, source.outputs)
    assert of is not None
    prompts = steps.draw_prompts(of.tokens, source.limits, 17)
    assert [len(prompt) for prompt in prompts] == [17, 12, 6]
    run = PrecisionCopy(source.module, torch.float32, outputs=len(source.outputs))
    walked = steps.rollout(run, of, prompts, 64, [spec.name for spec in source.outputs])
    assert all(len(set(row[-20:])) >= 10 for row in walked.tokens_BK.tolist())
    # logits of one pass over everything are those of the rollout
    whole = [*prompts[1], *walked.tokens_BK[1].tolist()]
    with torch.inference_mode():
        logits = source.module(input_ids=torch.tensor([whole]))[0][0].numpy()
    agree(logits[11:-1], walked.logits_BKV[1], "model in float32", np.float32)


@pytest.mark.all
def test_other_weights_fail_both(tmp_path: Path) -> None:
    report = proof(decoder("rope"), tmp_path, model_of=decoder("rope", "seed=1"))
    logits, *rest = stepped(report)
    assert logits.verdict == "fail"
    assert "exceeds" in logits.note
    assert [item.verdict for item in rest] == ["fail"]


class Drifting(nn.Module):
    """Right in one call; off by a little where there are past tokens, behind so many."""

    def __init__(self, inner: nn.Module, behind: int, by: float) -> None:
        super().__init__()
        self.inner, self.behind, self.by = inner, behind, by

    def forward(self, **inputs: Any) -> Any:
        logits, *rest = self.inner(**inputs)
        past = inputs["past_key_values.0.key"].shape[2]
        off = torch.tensor(self.by) * (torch.tensor(past) > self.behind)
        ramp = torch.arange(logits.shape[-1], dtype=logits.dtype)
        return (logits + off.to(logits.dtype) * ramp, *rest)


@pytest.mark.all(but=("1.0",))
@pytest.mark.parametrize(("by", "free"), [(1e-6, "pass"), (1.0, "fail")])
def test_a_drift_that_only_many_steps_show_is_found(by: float, free: str, tmp_path: Path) -> None:
    """The grid's points have three steps behind a prompt; this is wrong behind 60 tokens only."""
    source = decoder("rope")
    # the reference drifts here: it must make the steps that one call replaces where no formula depends on the length
    stepwise = msgspec.structs.replace(source.limits, length_dependent=True)
    source = msgspec.structs.replace(source, limits=stepwise)
    model = exported(source, tmp_path).SerializeToString()
    runner = Runner(model, inputs=[s.name for s in source.inputs], outputs=[s.name for s in source.outputs], threads=1)
    drifting = Drifting(source.module, 60, by)
    truth, own = (
        PrecisionCopy(drifting, dtype, outputs=len(source.outputs)) for dtype in (torch.float64, torch.float32)
    )
    reference = SimpleNamespace(source=source, truth=truth, baseline=own)
    proof = SimpleNamespace(judge=Criterion("fp32"), about=SimpleNamespace(provider="cpu"))
    logits, choice = steps.check(reference, runner, proof)
    assert logits.verdict == "fail"
    assert "exceeds" in logits.note
    assert choice.verdict == free, choice.note


@pytest.mark.parametrize(
    ("free", "wanted", "gap", "verdict", "says"),
    [
        ([[1, 2, 3]], [[1, 2, 3]], [[9, 9, 9]], "pass", "3 of 3 tokens are certain"),
        ([[1, 2, 4]], [[1, 2, 3]], [[9, 9, 9]], "fail", "step 2 of row 0 chooses token 4, PyTorch 3"),
        ([[1, 2, 4]], [[1, 2, 3]], [[9, 9, 1]], "pass", "2 of 3 tokens are certain"),
        ([[1, 4, 4]], [[1, 2, 3]], [[9, 9, 1]], "fail", "step 1 of row 0"),
        ([[1, 4, 4]], [[1, 2, 3]], [[9, 1, 9]], "pass", "1 of 3"),
        ([[1, 2]], [[1, 2, 3]], [[9, 9, 9]], "fail", "chooses no token"),
        ([[7, 7], [1, 5]], [[7, 7], [1, 2]], [[1, 9], [9, 9]], "fail", "step 1 of row 1"),
        ([[7, 7], [1, 2]], [[3, 3], [1, 2]], [[1, 9], [9, 9]], "pass", "2 of 4"),
        ([[7, 7]], [[3, 3]], [[1, 9]], "skipped", "in no row"),
        (Refusal("generating failed: x"), [[1]], [[9]], "fail", "generating failed: x"),
    ],
)
def test_tokens_are_compared_up_to_the_first_close_step(
    free: Any, wanted: list[list[int]], gap: list[list[float]], verdict: str, says: str
) -> None:
    found = steps.compare(free, np.array(wanted), np.array(gap), 2.0)
    assert found[0] == verdict
    assert says in found[1]


def test_gaps_are_between_the_two_best() -> None:
    assert steps.gaps(np.array([[[1.0, 5.0, 3.5], [2.0, 2.0, -1.0]]])).tolist() == [[1.5, 0.0]]
    assert steps.gaps(np.ones((1, 2, 1))).tolist() == [[np.inf, np.inf]]


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        (LengthContract(), (17, 64)),
        (LengthContract(max_length=128), (17, 64)),
        (LengthContract(max_length=80), (17, 64)),
        (LengthContract(max_length=79), (17, 63)),
        (LengthContract(max_length=23), (11, 13)),
        (LengthContract(max_length=1), (1, 1)),
        (LengthContract(boundaries=[40]), (17, 64)),
        (LengthContract(boundaries=[40, 200], length_dependent=True), (168, 64)),
        (LengthContract(boundaries=[40], length_dependent=True), (17, 64)),
        (LengthContract(boundaries=[4096], length_dependent=True), (17, 64)),
        (LengthContract(boundaries=[200], max_length=200, length_dependent=True), (17, 64)),
        (LengthContract(boundaries=[200], max_length=205, length_dependent=True), (168, 38)),
    ],
)
def test_the_steps_fit_the_table_and_cross_a_near_boundary(limits: LengthContract, wanted: tuple[int, int]) -> None:
    length, count = steps.sizes(limits)
    assert (length, count) == wanted
    assert limits.max_length is None or length + count - 1 <= limits.max_length


@pytest.mark.all
def test_fewer_steps_where_the_table_ends(tmp_path: Path) -> None:
    report = proof(decoder("absolute", "max_positions=19"), tmp_path, lengths=(3,))
    assert report.passed
    assert [item.name for item in stepped(report)] == [
        "logits of 11 decode steps on PyTorch's greedy tokens",
        "11 greedy decode steps choose PyTorch's tokens",
    ]


@pytest.mark.all
def test_without_logits_or_a_cache_there_are_no_steps(tmp_path: Path) -> None:
    report = proof(decoder("nope", task="features"), tmp_path, lengths=(3,))
    assert report.passed
    assert stepped(report) == []


# -- later tokens ----------------------------------------------------------------------------------


def later(report: Report) -> list[Invariant]:
    return [item for item in report.invariants if item.name == LATER]


def test_later_tokens_change_nothing_in_a_decoder(rope: Report) -> None:
    assert [(item.length, item.verdict) for item in later(rope)] == [(17, "pass")]
    assert decoder("rope").promises.causal


@pytest.mark.all
def test_an_encoder_that_promises_it_fails(tmp_path: Path) -> None:
    right = encoder("encoder-absolute")
    assert not right.promises.causal
    wrong = msgspec.structs.replace(right, promises=msgspec.structs.replace(right.promises, causal=True))
    report = proof(wrong, tmp_path, lengths=(17,))
    assert [item.verdict for item in later(report)] == ["fail"]
    assert not report.passed
    assert f"{LATER}: last_hidden_state changes by" in report.describe()
    assert later(proof(right, tmp_path, lengths=(17,))) == []


def test_a_report_with_steps_reads_back(rope: Report) -> None:
    assert Report.from_json(rope.to_json()) == rope
    assert msgspec.json.decode(rope.to_json())["invariants"][-1]["output"] == "logits"
