"""A checkpoint of every family through the commands that users run, for the CPU and in int8 (``--all``)."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

import posexport

GOLDEN = Path(__file__).parents[1] / "golden"
EVERY = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
#: channels of the smallest projection that is quantized
LEAST = 16


def quantizable(name: str) -> bool:
    """Whether the checkpoint has a projection that is large enough; some golden ones are there for values alone."""
    with safe_open(GOLDEN / name / "model.safetensors", "pt") as stored:
        shapes = [stored.get_slice(key).get_shape() for key in stored.keys()]  # noqa: SIM118 (no mapping)
    return any(len(shape) == 2 and min(shape) >= LEAST for shape in shapes)


def of_families() -> list[str]:
    """The first checkpoint of every model type that can be quantized."""
    first: dict[str, str] = {}
    for name in filter(quantizable, EVERY):
        first.setdefault(family(name), name)
    return list(first.values())


def family(name: str) -> str:
    return str(json.loads((GOLDEN / name / "config.json").read_text())["model_type"])


@pytest.fixture
def tiny_weights_are_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    """These checkpoints are so small that their weights would stay in float32 for the nodes that integers need."""
    monkeypatch.setattr("posexport.precision.chosen.shrinking", lambda chosen, _: chosen)


@pytest.mark.all
@pytest.mark.usefixtures("tiny_weights_are_quantized")
@pytest.mark.parametrize("name", of_families())
def test_int8_agrees(name, tmp_path):
    """The float32 graph for the CPU on the whole grid, and the quantized one by its agreement."""
    done = posexport.convert(GOLDEN / name, tmp_path / "a", precision="int8", target="cpu", threads=1)
    assert done.good, done.report.to_text()
    assert done.manifest.projections["int8"] > 0


@pytest.mark.all
@pytest.mark.parametrize("name", EVERY)
def test_every_checkpoint_converts_for_the_cpu(name, tmp_path):
    precision = "int8" if quantizable(name) else "fp32"
    assert posexport.convert(GOLDEN / name, tmp_path / "a", precision=precision, target="cpu", verify=False).good


@pytest.mark.all
@pytest.mark.parametrize("precision", ["int8", "int4", "fp16"])
@pytest.mark.parametrize("name", of_families())
def test_every_precision_is_proven(name, precision, tmp_path):
    """By default options, as users convert."""
    done = posexport.convert(GOLDEN / name, tmp_path / "a", precision=precision, threads=1)
    assert done.good, done.report.to_text()
