"""posexport plot --check: every encoding keeps what it claims, and one that does not is found out."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from posexport.cli import group
from posexport.encodings.alibi import Alibi
from posexport.encodings.encoding import ENCODINGS, Encoding, Entry
from posexport.encodings.positions import distances
from posexport.encodings.rope.rope import Rope
from posexport.encodings.rope.yarn import RopeYarn
from posexport.encodings.shaw_kv import ShawKV
from posexport.encodings.sinusoidal import Sinusoidal
from posexport.errors import PosexportError
from posexport.graph.ops.distance_scores import DISTANCE_SCORES
from posexport.sources.encoding_alone import alone
from posexport.study.shift_check import relative, rotation, sinusoid
from posexport.study.shift_check.records import TOLERANCE
from posexport.study.shift_check.shift_check import check_shift
from tests.tolerances import agree


def figures(name: str, *pairs: str) -> dict[str, float]:
    """Claim to figure, of what the encoding claims."""
    return {check.claim: check.figure for check in check_shift(name, pairs).checks if check.figure is not None}


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_keeps_what_it_claims(name):
    report = check_shift(name)
    assert report.good, report.to_text()
    claimed = {check.claim for check in report.checks if check.figure is not None}
    relative_scores = report.subject.has("scores") and report.subject.layer.shift_invariant
    assert (relative.SCORES in claimed) == relative_scores
    assert (rotation.DISTANCE in claimed) == report.subject.has("rotate")
    for check in report.checks:
        assert check.detail


@pytest.mark.parametrize(
    ("name", "pairs", "claims"),
    [
        ("sinusoidal", ["layout=half", "hidden=33"], {sinusoid.PROPERTY}),
        ("sinusoidal", ["joined=concat"], {sinusoid.PROPERTY}),
        ("cape", ["centre=17.5", "step=0.25"], {sinusoid.PROPERTY}),
        ("absolute", [], set()),
        ("nope", [], set()),
        ("t5", [], {relative.SCORES, relative.TOEPLITZ}),
        ("alibi", ["variant=bloom"], {relative.SCORES, relative.TOEPLITZ}),
        ("relative-key", [], {relative.SCORES}),
        ("relative-key", ["max_positions=1"], set()),
        ("shaw-kv", ["clip=3"], {relative.SCORES, relative.VALUES}),
        ("rope", ["rotary_dim=6"], {rotation.NORM, rotation.DISTANCE, rotation.MOVED}),
        ("rope-dynamic", [], {rotation.NORM, rotation.DISTANCE}),
        ("xpos", [], {rotation.DISTANCE, rotation.MOVED}),
    ],
)
def test_what_is_checked(name, pairs, claims):
    found = figures(name, *pairs)
    assert set(found) == claims
    assert all(0 <= figure <= TOLERANCE for figure in found.values())


def test_shift_matrix_is_the_rotation_of_the_paper():
    vectors_TC, _ = sinusoid.position_vectors(alone("sinusoidal", ["hidden=10"]), 30)
    shift = sinusoid.shift_of(vectors_TC)
    matrix = shift.matrix(7)
    want = np.zeros((10, 10))
    for i in range(5):
        angle = 7 / 10000 ** (2 * i / 10)
        want[2 * i, 2 * i] = want[2 * i + 1, 2 * i + 1] = np.cos(angle)
        want[2 * i, 2 * i + 1], want[2 * i + 1, 2 * i] = np.sin(angle), -np.sin(angle)
    agree(matrix, want, "encoding", np.float64)
    agree(want @ vectors_TC[11], vectors_TC[18], "encoding", np.float64)
    assert shift.residual(7).shape == (23, 10)


class _OtherCosines(Sinusoidal):
    def vectors(self, ids_BT, dtype):
        out = super().vectors(ids_BT, dtype)
        out[..., 1::2] = super().vectors(ids_BT + ids_BT // 40, dtype)[..., 1::2]
        return out


class _Growing(Sinusoidal):
    def vectors(self, ids_BT, dtype):
        return super().vectors(ids_BT, dtype) * (1 + 1e-6 * ids_BT[..., None].to(dtype))


class _Absolute(Alibi):
    """Slopes grow with the place of the first key."""

    def scores(self, q_BHTD, k_BHSD, queries, keys):
        term = super().scores(q_BHTD, k_BHSD, queries, keys)
        by_distance, lowest = term.tensors
        return type(term)(DISTANCE_SCORES, (by_distance * (1 + 1e-6 * keys.slots_T[0]), lowest), queries, keys)


class _Bent(Alibi):
    """Row by row another slope, wherever the tokens stand."""

    def scores(self, q_BHTD, k_BHSD, queries, keys):
        term = super().scores(q_BHTD, k_BHSD, queries, keys)
        lowest, _ = distances(queries, keys)
        squared = (queries.slots_T - queries.slots_T[0]).double()[None, None, :, None] ** 2
        return _Fixed(term, 1 + 1e-6 * squared, lowest)


class _Fixed:
    """A bias that is no function of the distance."""

    def __init__(self, term, factor, lowest):
        self.operator, self.tensors, self.queries, self.keys = term.operator, term.tensors, term.queries, term.keys
        self.term, self.factor, self.lowest = term, factor, lowest

    def dense(self, **given):
        return self.term.dense(**given) * self.factor


class _AbsoluteValues(ShawKV):
    def values(self, queries, keys):
        term = super().values(queries, keys)
        return type(term)(term.operator, (term.tensors[0] * (1 + 1e-6 * keys.slots_T[0]),), queries, keys)


class _Stretching(Rope):
    def rotate(self, x_BHTD, positions, role):
        grown = 1 + 1e-6 * positions.ids_BT[:, None, :, None].to(x_BHTD.dtype)
        return super().rotate(x_BHTD, positions, role) * grown


class _StretchingYarn(RopeYarn):
    """The same beside an attention factor, which is no fault."""

    def rotate(self, x_BHTD, positions, role):
        grown = 1 + 1e-6 * positions.ids_BT[:, None, :, None].to(x_BHTD.dtype)
        return super().rotate(x_BHTD, positions, role) * grown


class _Mirrored(Rope):
    """Keys turned the other way: products depend on the sum of the positions."""

    def rotate(self, x_BHTD, positions, role):
        turned = positions if role == "query" else type(positions)(-positions.ids_BT, positions.slots_T)
        return super().rotate(x_BHTD, turned, role)


@pytest.mark.parametrize(
    ("broken", "claims"),
    [
        (_OtherCosines, {sinusoid.PROPERTY}),
        (_Growing, {sinusoid.PROPERTY}),
        (_Absolute, {relative.SCORES}),
        (_Bent, {relative.TOEPLITZ}),
        (_AbsoluteValues, {relative.VALUES}),
        (_Stretching, {rotation.NORM, rotation.DISTANCE, rotation.MOVED}),
        (_StretchingYarn, {rotation.NORM, rotation.DISTANCE, rotation.MOVED}),
        (_Mirrored, {rotation.DISTANCE, rotation.MOVED}),
    ],
)
def test_a_claim_that_fails_is_named_and_exits_1(broken: type[Encoding], claims, monkeypatch):
    monkeypatch.setitem(ENCODINGS, "broken", Entry("broken", broken, {}, [{}], "Broken.", "none"))
    done = CliRunner().invoke(group, ["plot", "--check", "broken", "--json"])
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert report["verdict"].startswith("failed: ")
    assert {check["claim"] for check in report["checks"] if check["passed"] is False} == claims
    assert all(check["applies"] == (check["passed"] is not None) for check in report["checks"])
    done = CliRunner().invoke(group, ["plot", "--check", "broken"])
    assert done.exit_code == 1
    assert done.stdout.count("FAIL") == len(claims)


def test_a_figure_that_is_no_number_is_no_proof(monkeypatch):
    class Nothing(Rope):
        def rotate(self, x_BHTD, positions, role):
            return super().rotate(x_BHTD, positions, role) * torch.nan

    monkeypatch.setitem(ENCODINGS, "nothing", Entry("nothing", Nothing, {}, [{}], "Broken.", "none"))
    assert not check_shift("nothing").good


def test_commands_print_figures_and_reasons():
    done = CliRunner().invoke(group, ["plot", "--check", "sinusoidal", "--set", "hidden=512"])
    assert done.exit_code == 0
    assert "256 rotations" in done.stdout
    assert "does not apply: it does not rotate" in done.stdout
    done = CliRunner().invoke(group, ["plot", "--check", "alibi", "--set", "variant=bloom"])
    assert "one number for each query" in done.stdout
    done = CliRunner().invoke(group, ["plot", "--check", "alibi"])
    assert "one number for each query" not in done.stdout


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (["period=3"], "sinusoidal has no such setting"),
        (["hidden=-3"], "--set hidden must be a whole number from 1 to"),
        (["hidden=x"], "--set hidden must be a whole number, got 'x'"),
        (["layout=other"], "layout must be one of"),
        (["hidden"], "KEY=VALUE"),
    ],
)
def test_bad_settings_are_sentences(pairs, says):
    with pytest.raises(PosexportError, match=says):
        alone("sinusoidal", pairs)
    with pytest.raises(PosexportError, match="must be a multiple of heads=5"):
        alone("rope", ["hidden=61"])
    assert alone("rope", ["hidden=61", "head_size=8"]).head_size == 8


def test_the_seed_decides_the_parameters():
    first, same, other = (alone("absolute", [f"seed={seed}"]).layer.get_parameter("table") for seed in (3, 3, 4))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
