"""``posexport bench --compare``: which ways a machine has, from what errors are measured, which way is advised."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from posexport.base.targets.providers import PROVIDERS
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.inspect.bench import ways as module
from posexport.inspect.bench.candidate import Candidate
from posexport.inspect.bench.records import Document, Figure, Point, Result
from posexport.inspect.bench.ways import advice, compared, ways
from posexport.inspect.bench.workers.job import Job
from tests.tolerances import allowed


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the CPU and OpenVINO."""

    def check(name: str) -> None:
        if name not in ("cpu", "openvino"):
            raise PosexportError("it does not load")

    monkeypatch.setattr(module, "check_loads", check)


@pytest.mark.usefixtures("loading")
def test_ways_are_providers_with_the_precisions_that_they_compute() -> None:
    assert [way.name for way in ways()] == ["cpu fp32", "cpu int8", "cpu int4", "openvino fp32", "openvino bf16"]
    assert [way.target for way in ways()] == ["cpu", "cpu", "cpu", "openvino", "openvino"]
    assert module.Way(provider=PROVIDERS["webgpu"]).target == "portable"


@pytest.mark.usefixtures("loading")
def test_a_source_is_converted_once_for_each_graph_and_compared_with_pytorch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    converted: list[tuple[str, ...]] = []

    def candidates(models: Any, precisions: Any, options: Any, folder: Path) -> tuple[list[Candidate], bool]:
        if folder.name in ("cpu-fp32", "cpu-int8", "cpu-int4", "openvino-fp32"):
            converted.append((*precisions, *options))
        return [Candidate(name=models[0], model=f"{models[0]}/model.onnx", vocab=9, weights="w")], False

    monkeypatch.setattr(module, "candidates", candidates)
    measured, cached = compared("encoder-nope", ["--set", "layers=1"], ["layers=1"], tmp_path)
    assert not cached
    assert converted == [
        ("fp32", "--set", "layers=1", "--target", "cpu"),
        ("int8", "--set", "layers=1", "--target", "cpu"),
        ("int4", "--set", "layers=1", "--target", "cpu"),
        ("fp32", "--set", "layers=1", "--target", "openvino"),
    ]
    names = ["PyTorch fp32", "PyTorch bf16", "cpu fp32", "cpu int8", "cpu int4", "openvino fp32", "openvino bf16"]
    assert [candidate.name for candidate in measured] == names
    assert {candidate.weights for candidate in measured} == {"encoder-nope"}
    assert [candidate.precision for candidate in measured] == ["fp32", "bf16", "fp32", "int8", "int4", "fp32", "bf16"]
    assert measured[-1].provider_options == {"precision": "bf16"}
    assert measured[1].options == {"dtype": "bfloat16", "settings": ["layers=1"]}
    assert measured[1].provider is None


def _result(*figures: tuple[str, float, float | None, bool]) -> Result:
    figures_ = [
        Figure(candidate=name, by_posexport=True, ms=ms, difference=difference, wrong=wrong, peak=70_000_000)
        for name, ms, difference, wrong in figures
    ]
    point = Point(batch=8, new=128)
    return Result(model="m", point=point, baseline=figures_[0].candidate, valid=True, reason=None, figures=figures_)


def test_advice_names_the_fastest_way_of_float32s_error_and_a_faster_one() -> None:
    result = _result(
        ("PyTorch fp32", 9.0, None, False),
        ("cpu fp32", 6.0, 4e-7, False),
        ("cpu int8", 4.0, 2e-2, False),
        ("openvino bf16", 2.0, 5e-3, False),
        ("broken", 1.0, 0.5, True),
    )
    assert advice(result) == [
        "length 128, batch 8: take cpu fp32 for float32's error, 6 ms and 70 MB",
        "length 128, batch 8: openvino bf16 is 3 times as fast, 2 ms and 70 MB, where an error of 5e-03 of the largest "
        "value is accepted",
    ]
    alone = _result(("cpu fp32", 2.0, None, False), ("openvino bf16", 3.0, 5e-3, False))
    assert advice(alone) == ["length 128, batch 8: take cpu fp32 for float32's error, 2 ms and 70 MB"]


def test_padding_is_on_the_right_of_rows_of_growing_length() -> None:
    def mask(padding: float, batch: int = 5) -> np.ndarray[Any, Any]:
        sizes = {"past": 0, "new": 41, "runs": 1, "warmup": 1, "threads": 1, "vocab": 9}
        return Job(model="m", answer="a", batch=batch, padding=padding, **sizes).mask()

    assert mask(0).all()
    assert mask(0.5).sum(1).tolist() == [1, 11, 21, 31, 41]
    assert mask(0.25).sum(1).tolist() == [20, 25, 30, 36, 41]
    assert (np.diff(mask(0.5), axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["encoder-nope", "encoder-t5"], "--compare measures one MODEL in several ways, got encoder-nope encoder-t5"),
        (
            ["encoder-nope", "--target", "cpu"],
            "--compare takes every provider and precision of this machine; leave --target out",
        ),
        (["encoder-nope", "--mixed"], "leave --mixed out"),
    ],
)
def test_what_compare_finds_out_is_not_an_option(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(group, ["bench", "--compare", *arguments])
    assert said in str(done.exception)


@pytest.mark.all
def test_a_source_in_every_way_of_this_machine(tmp_path: Path) -> None:
    arguments = ["encoder-rope", "--set", "layers=1", "--length", "5", "--batch", "3", "--padding", "50"]
    done = CliRunner().invoke(
        group, ["bench", "--compare", *arguments, "--rounds", "1", "-o", str(tmp_path / "ways.json")]
    )
    assert done.exit_code == 0, done.output
    document = msgspec.json.decode((tmp_path / "ways.json").read_bytes(), type=Document)
    (result,) = document.results
    figures = {figure.candidate: figure for figure in result.figures}
    assert result.baseline == "PyTorch fp32"
    assert (figures["cpu fp32"].difference or 1) < allowed("model in float32", np.float32)
    assert 1e-4 < (figures["PyTorch bf16"].difference or 0) < 5e-2
    assert "take" in document.advice[0]
