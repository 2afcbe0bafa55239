"""The rule for a bundle as a whole: what many points say together, and which of them are taken together."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from posexport.base.spec import LengthContract
from posexport.graph.lowering.blocks import BLOCK
from posexport.proof.criterion import EPS, tolerance
from posexport.proof.grid.grid import switches
from posexport.proof.report.point_table import to_text
from posexport.proof.report.points import Point
from posexport.proof.report.record import check_medians
from posexport.proof.report.report import Report
from posexport.sources.source import Source
from tests.parity_models import exported, prove, source, wrapped

EPS32 = EPS["fp32"]


def point(length: int, error: float | None, *, worst: float = 4 * EPS32, **changes: object) -> Point:
    made = Point(
        batch=1,
        length=length,
        padding="none",
        provider="cpu",
        precision="fp32",
        output="logits",
        error=error,
        baseline_error=worst,
        worst_baseline_error=worst,
        tolerance=tolerance("fp32", "logits", worst),
        verdict="pass",
    )
    return msgspec.structs.replace(made, **changes)


def points(errors: list[float], **changes: object) -> list[Point]:
    return [point(length, error * EPS32, **changes) for length, error in enumerate(errors, 1)]


def test_the_median_in_units_of_pytorchs_error_decides() -> None:
    (right,) = check_medians(points([8.0] * 5 + [60.0] * 4 + [1.0]), [100], EPS32)
    assert (right.output, right.points, right.ratio, right.verdict) == ("logits", 10, 2.0, "pass")
    (wrong,) = check_medians(points([1.0] * 4 + [8.5] * 6), [100], EPS32)
    assert (wrong.ratio, wrong.limit, wrong.verdict) == (8.5 / 4, 2.0, "fail")
    assert wrong.describe() == (
        "the median error of logits over 10 points (1 to 10) is 2.1 times PyTorch's: 2 is allowed"
    )


def test_pytorchs_error_counts_as_two_eps_at_least() -> None:
    (found,) = check_medians(points([3.0] * 10, worst=0.0), [], EPS32)
    assert found.ratio == 1.5
    half = points([3.0 * EPS["fp16"] / EPS32] * 10, worst=0.0, precision="fp16")
    assert check_medians(half, [], EPS["fp16"])[0].ratio == 1.5


def test_fewer_than_five_points_say_nothing() -> None:
    assert check_medians(points([30.0] * 4), [], EPS32) == []
    # nor do refusals and skipped points, which have no tolerance
    assert check_medians([*points([30.0] * 4), point(20, None, tolerance=None, verdict="rejected")], [], EPS32) == []


def test_each_side_of_a_switch_is_judged_for_itself() -> None:
    """A branch that is wrong by a little is found even where most points run the others."""
    found = check_medians(points([1.0] * 30 + [12.0] * 10), [10, 30], EPS32)
    assert [(item.shortest, item.longest, item.verdict) for item in found] == [
        (1, 40, "pass"),
        (1, 10, "pass"),
        (11, 30, "pass"),
        (31, 40, "fail"),
    ]
    # the length of a switch belongs to the side below it
    assert [item.points for item in check_medians(points([1.0] * 30), [10], EPS32)] == [30, 10, 20]


def test_sequences_in_several_calls_are_judged_for_themselves() -> None:
    several = points([12.0] * 10, calls=(1, 1))
    found = check_medians([*points([1.0] * 20), *several], [100], EPS32)
    assert [(item.calls, item.points, item.verdict) for item in found] == [
        (None, 30, "pass"),
        ("one", 20, "pass"),
        ("several", 10, "fail"),
    ]
    assert "over 10 points (1 to 10, in several calls)" in found[-1].describe()


def test_cache_tensors_are_one_output_with_their_largest_error() -> None:
    names = ["present.0.key", "present.0.value", "present.1.key"]
    tensors = [
        point(n, EPS32 * (9.0 if name == "present.1.key" else 1.0), output=name, baseline_error=None)
        for n in range(1, 11)
        for name in names
    ]
    (found,) = check_medians(tensors, [], EPS32)
    assert (found.output, found.points, found.ratio, found.verdict) == ("present.*", 10, 2.25, "fail")


def test_an_error_that_is_not_a_number_fails_and_can_be_written() -> None:
    (found,) = check_medians([point(n, None) for n in range(10)], [], EPS32)
    assert found.verdict == "fail"
    assert np.isfinite(msgspec.json.decode(msgspec.json.encode(found))["ratio"])


def test_switches_are_the_encodings_boundaries_and_the_size_of_a_block() -> None:
    assert switches(LengthContract(boundaries=[17, 300])) == [17, BLOCK, 300]
    # 128 tokens of 2 samples with a stride of 2 are 256 samples; 257 give no other token
    assert switches(LengthContract(convolutions=[(2, 2)])) == [2 * BLOCK + 1]


# -- in the proof ------------------------------------------------------------------------------------------------------


def off(right: Source, by: float, lengths: tuple[int, int]) -> Source:
    """Its outputs are ``by`` too large at lengths from the first to the second."""

    def change(y: tuple[torch.Tensor, ...], mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        length = torch.tensor(mask.shape[1])
        inside = ((length >= lengths[0]) & (length <= lengths[1])).to(y[0].dtype)
        return (y[0] * (1 + by * inside),)

    return wrapped(right, change=change)


def proof(right: Source, wrong: Source, folder: Path, lengths: list[int]) -> Report:
    return prove(right, exported(wrong, folder).SerializeToString(), lengths=lengths, threads=1)


@pytest.fixture(scope="module")
def right() -> Source:
    return source("encoder-nope")


@pytest.mark.all
def test_an_error_at_one_length_that_is_rounding_passes(right: Source, tmp_path: Path) -> None:
    report = proof(right, off(right, 30 * EPS32, (17, 17)), tmp_path, [2, 17, 33, 40, 50])
    assert report.passed, report.describe()
    errors = [p.error for p in report.points if p.length == 17 and p.error is not None]
    assert min(errors) > 20 * EPS32


def test_the_same_error_at_every_length_fails(right: Source, tmp_path: Path) -> None:
    report = proof(right, off(right, 30 * EPS32, (1, 99)), tmp_path, [2, 17, 40])
    assert not report.passed
    assert {p.verdict for p in report.points} == {"pass"}
    assert report.describe().startswith("the median error of last_hidden_state over 13 points (2 to 40) is ")
    assert "FAIL: the median error of last_hidden_state over 13 points (2 to 40) is " in to_text(report)
    assert Report.from_json(report.to_json()) == report


@pytest.mark.all
def test_the_same_error_beyond_a_switch_fails(right: Source, tmp_path: Path) -> None:
    report = proof(right, off(right, 30 * EPS32, (BLOCK + 1, 999)), tmp_path, [2, 17, 40, 129, 130])
    whole, below, above = report.medians
    assert (whole.verdict, below.verdict, above.verdict) == ("pass", "pass", "fail")
    assert "over 5 points (129 to 130) is" in report.describe()


def test_a_right_model_says_so(right: Source, tmp_path: Path) -> None:
    report = proof(right, right, tmp_path, [2, 17, 40])
    assert report.passed, report.describe()
    assert "median error at most" in report.describe()
    assert "ok: the median error of last_hidden_state over 13 points (2 to 40) is" in to_text(report)
