"""Quantized graphs are proven against what they store: right ones pass, and every known mistake is found."""

from pathlib import Path

import pytest

import posexport
from posexport.parity.choose import ProofOptions, prove_model
from posexport.sources import builtin
from posexport.sources.source import Source
from posexport.tokenizer.byte_pair import train
from tests.quantized_mutants import MUTANTS, broken

SETTINGS = {"layers": 2, "hidden": 40, "heads": 5, "feedforward": 72, "vocab": 301, "max_positions": 40}
SCHEMES = {
    "int8": {"precision": "int8"},
    "int8 weights": {"precision": "int8", "weight_only": True},
    "int4": {"precision": "int4"},
    "int8 static": {"precision": "int8", "calibrate": "texts"},
    "int4 hqq": {"precision": "int4", "quantizer": "hqq"},
    "int4 gptq": {"precision": "int4", "quantizer": "gptq", "calibrate": "texts"},
}
TEXTS = [" ".join(f"{word}{number}" for word in ("river", "stone", "cloud", "fern")) for number in range(40)]
LENGTHS = (1, 17)
SHORT = {("int8", "cpu"), ("int4", "cpu")}


def converted(name: str, scheme: str, target: str, folder: Path) -> tuple[Source, Path]:
    how = dict(SCHEMES[scheme])
    if "calibrate" in how:
        texts, tokenizer = folder.with_suffix(".txt"), folder.with_suffix(".json")
        texts.write_text("\n".join(TEXTS))
        tokenizer.write_bytes(train(texts, 300).data)
        how |= {"calibrate": texts, "tokenizer": tokenizer}
    posexport.convert(name, folder, target=target, settings=SETTINGS, verify=False, **how)
    given = tuple(f"{key}={value}" for key, value in SETTINGS.items())
    return builtin.builtin_source(name, task=None, settings_given=given), folder / "model.onnx"


def found(source: Source, model: Path, precision: str) -> str:
    """What is wrong with a graph; nothing."""
    report = prove_model(source, model, ProofOptions(precision=precision, lengths=LENGTHS, threads=1))
    return "" if report.passed else report.describe()


CASES = [
    pytest.param(name, scheme, target, marks=() if short else pytest.mark.all)
    for name in ("encoder-absolute", "decoder-absolute")
    for scheme in SCHEMES
    for target in ("cpu", "portable")
    for short in [name.startswith("encoder") and (scheme, target) in SHORT]
]


@pytest.mark.all(but=("encoder-absolute-int8-cpu",))
@pytest.mark.parametrize(("name", "scheme", "target"), CASES)
def test_right_graphs_pass_and_mistakes_are_found(name: str, scheme: str, target: str, tmp_path: Path) -> None:
    source, model = converted(name, scheme, target, tmp_path / "bundle")
    precision = SCHEMES[scheme]["precision"]
    assert not found(source, model, precision)
    tried, missed = [], []
    for mutant in MUTANTS:
        wrong = tmp_path / f"{mutant.__name__}.onnx"
        if not broken(model, mutant, wrong):
            continue
        tried.append(mutant.__name__)
        if not found(source, wrong, precision):
            missed.append(mutant.__name__)
    assert not missed
    assert len(tried) >= 5, tried
