"""Quantized graphs are proven against what they store: right ones pass, and every known mistake is found."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import posexport
from posexport.proof.choose import ProofOptions, prove_model
from posexport.proof.quantized.read import read
from posexport.run.tokenizer.byte_pair import train
from posexport.sources import builtin
from posexport.sources.source import Source
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


def a_step_away(source: Source, model: Path, to: Path) -> str:
    """Write a copy with one value of 4 bits on the far side of its parameter's, as rounding by second order may."""
    use = next(use for use in read(model, source.inputs)[0] if ".1." in use.stored.name and not use.lookup)
    name, whole = use.stored.name, use.stored.whole[:].astype(int)
    parameter = dict(source.module.named_parameters())[re.sub("(_packed)?_bits4$", "", name)].detach().numpy()
    steps = use.stored.steps(np.arange(len(whole)), parameter.astype(np.float64))
    within = (whole > use.stored.lowest) & (whole < use.stored.highest)
    channel, k = np.unravel_index(np.where(within, np.abs(np.abs(steps) - 0.3), 1).argmin(), whole.shape)
    loaded = onnx.load(model)
    tensor = next(tensor for tensor in loaded.graph.initializer if tensor.name == name)
    packed = onnx.numpy_helper.to_array(tensor).copy()
    step = int(np.sign(steps[channel, k])) * (16 if k % 2 else 1)
    packed.reshape(len(whole), -1)[channel, k // 2] += np.array(step).astype(np.uint8)
    tensor.raw_data = packed.tobytes()
    onnx.save(loaded, to)
    return f"{name}: 1 of {whole.size} values are further .* first in channel {channel} at {k}, by 0.7"


def test_a_value_a_step_away_is_refused_where_the_recipe_rounds_to_nearest(tmp_path: Path) -> None:
    source, model = converted("encoder-absolute", "int4", "cpu", tmp_path / "bundle")
    sentence = a_step_away(source, model, wrong := tmp_path / "wrong.onnx")
    # of what nobody says how it was rounded, second order is right too
    assert not found(source, wrong, "int4")
    report = posexport.verify(wrong, against="encoder-absolute", settings=SETTINGS, lengths=[1], threads=1)
    assert not report.passed
    assert re.search(sentence, report.describe())
