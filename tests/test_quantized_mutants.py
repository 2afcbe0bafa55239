"""Quantized graphs are proven against what they store: right ones pass, and every known mistake is found."""

from pathlib import Path

import pytest
from quantized_mutants import MUTANTS, broken

import posexport
from posexport.errors import PosexportError
from posexport.parity.prove import prove
from posexport.parity.quantized import StoredError, as_stored
from posexport.sources import builtin
from posexport.sources.source import Source

SETTINGS = {"layers": 2, "hidden": 40, "heads": 5, "feedforward": 72, "vocab": 301, "max_positions": 40}
SCHEMES = {
    "int8": {"precision": "int8"},
    "int8 weights": {"precision": "int8", "weight_only": True},
    "int4": {"precision": "int4"},
    "int4 hqq": {"precision": "int4", "quantizer": "hqq"},
}
LENGTHS = (1, 17)
SHORT = {("int8", "cpu"), ("int4", "cpu")}


def converted(name: str, scheme: str, target: str, folder: Path) -> tuple[Source, Path]:
    settings = SETTINGS
    try:
        posexport.convert(name, folder, target=target, settings=settings, verify=False, force=True, **SCHEMES[scheme])
    except PosexportError as err:
        # ONNX Runtime with session.x64quantprecision, which processors without VNNI need for products of integers
        if "x_zero_point must be null" not in str(err):
            raise
        pytest.skip("ONNX Runtime runs no int8 blocks of DequantizeLinear here")
    given = tuple(f"{key}={value}" for key, value in settings.items())
    return builtin.builtin_source(name, task=None, settings_given=given), folder / "model.onnx"


def found(source: Source, model: Path) -> str:
    """What is wrong with a graph; nothing."""
    try:
        report = prove(as_stored(source, model), model, lengths=LENGTHS, threads=1)
    except StoredError as err:
        return str(err)
    return "" if report.passed else "its values are others"


CASES = [
    pytest.param(name, scheme, target, marks=() if short else pytest.mark.all)
    for name in ("encoder-absolute", "decoder-absolute")
    for scheme in SCHEMES
    for target in ("cpu", "portable")
    for short in [name.startswith("encoder") and (scheme, target) in SHORT]
]


@pytest.mark.parametrize(("name", "scheme", "target"), CASES)
def test_right_graphs_pass_and_mistakes_are_found(name: str, scheme: str, target: str, tmp_path: Path) -> None:
    source, model = converted(name, scheme, target, tmp_path / "bundle")
    assert not found(source, model)
    tried, missed = [], []
    for mutant in MUTANTS:
        wrong = tmp_path / f"{mutant.__name__}.onnx"
        if not broken(model, mutant, wrong):
            continue
        tried.append(mutant.__name__)
        if not found(source, wrong):
            missed.append(mutant.__name__)
    assert not missed
    assert len(tried) >= 5, tried
