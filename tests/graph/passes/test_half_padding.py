"""Rows whose keys are all dropped, in both 16-bit types: every definition, kind of attention and family.

What is converted is what users get by default, but for the proof, whose points have such rows for CANINE alone. A mask
that is added absorbs scores in float32. In float16 it is -32752: a sum in float16 lets scores of 8 and more through,
one in float32, which ONNX Runtime's CPU and fused attention compute, all of them.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import posexport
from posexport.base.sizes import samples
from posexport.base.targets.precisions import PrecisionName
from posexport.proof.criterion import EPS, Array, measure, tolerance
from posexport.proof.grid.inputs import Feeds, draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.references.precision_copy import PrecisionCopy, torch_threads
from posexport.proof.subjects.half import emulated_if, loads
from posexport.proof.subjects.runner import Runner
from posexport.run.bundle.manifest import model_of
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from posexport.sources.source import Source
from tests.matrix.cases import GOLDEN, models
from tests.small import by_attention, in_short, shared

#: not a multiple of the 4 characters of a molecule: of two real characters behind 13 of padding no molecule is made
LENGTH = 15
#: of a row's tokens, from, to: whole, padded behind, padded before, all padding
REAL = ((0, LENGTH), (0, 6), (13, LENGTH), (0, 0))

BUILT_IN = [*by_attention("encoder-"), *by_attention("decoder-"), "audio-conformer", "encoder-decoder-t5"]
#: a checkpoint of each family, and each definition without its head
#: the first checkpoint of every family
FAMILIES = {model.form: model.name for model in reversed([*models()]) if model.encoding is None and model.quantizes}
CHECKPOINTS = sorted({*FAMILIES.values(), "canine-model", "longformer-model", "modernbert-formaskedlm", "xlnet-model"})
#: CANINE, whose graph is long, is in test_canine.py
SHORT = {("encoder-absolute", "fp16")}


def settings(name: str) -> tuple[str, ...]:
    if name not in BUILT_IN:
        return ()
    if name.startswith("audio-"):
        return ("layers=2", "hidden=40", "heads=5", "feedforward=24")
    return tuple("vocab=257" if pair.startswith("vocab=") else pair for pair in shared(name))


def inputs(source: Source) -> tuple[Feeds, Array]:
    """Random inputs whose masks keep `REAL`, and the tokens to compare: the real ones, and all where none is real."""
    convolutions = source.limits.convolutions
    length = samples(LENGTH, convolutions)
    feeds = draw(
        GridPoint(batch=len(REAL), length=length, encoder_length=LENGTH, convolutions=tuple(convolutions)),
        source.inputs,
    )
    keep_BT = np.zeros((len(REAL), LENGTH), dtype=np.bool_)
    for row, (start, end) in enumerate(REAL):
        keep_BT[row, start:end] = True
    for spec in source.inputs:
        if spec.role == "mask":
            each = keep_BT.repeat(length // LENGTH, 1)
            feeds[spec.name] = np.pad(each, ((0, 0), (0, length - each.shape[1])), "edge").astype(spec.dtype)
    return feeds, keep_BT | ~keep_BT.any(1, keepdims=True)


CASES = [(name, precision) for name in (*BUILT_IN, *CHECKPOINTS) for precision in ("fp16", "bf16")]


@pytest.mark.all
@pytest.mark.parametrize(("name", "precision"), in_short(CASES, lambda *case: case in SHORT))
def test_rows_of_padding_are_right_in_half_precision(name: str, precision: PrecisionName, tmp_path: Path) -> None:
    """Every row within the proof's criterion, PyTorch's error being that of float32 in other eps.

    PyTorch's own of 16 bits would hide scores that show through a mask. The graph is run rounded after every operator,
    as on a GPU, and as it is where the CPU takes it: ONNX Runtime adds the mask in float32 there.
    """
    argument = name if name in BUILT_IN else str(GOLDEN / name)
    source = load_source(argument, LoadOptions(settings=settings(name)))
    if not any(spec.role == "mask" for spec in source.inputs):
        pytest.skip("has no mask: images of one size")
    given = dict(pair.split("=") for pair in settings(name))
    bundle = tmp_path / "bundle"
    posexport.convert(argument, bundle, settings=given, precision=precision, verify=False, remark=lambda _: None)
    feeds, keep_BT = inputs(source)
    parts = [part.spec for part in source.parts]
    model = model_of(bundle, parts)
    with torch_threads(1):
        with emulated_if(precision, model, parts) as rounded:
            answers = [Runner.of(source, rounded, parts, threads=1)(feeds)]
        if loads("cpu", precision):
            answers.append(Runner.of(source, model, parts, threads=1)(feeds))
        truth, single = (
            PrecisionCopy(source.module, dtype, outputs=len(source.outputs))(feeds)
            for dtype in (torch.float64, torch.float32)
        )
    for answer in answers:
        for spec, t, s, y in zip(source.outputs, truth, single, answer, strict=True):
            for row in range(len(REAL)):
                own, of_bundle = (measure(a[[row]], t[[row]], spec.axes, keep_BT[[row]]) for a in (s, y))
                limit = tolerance(precision, spec.name, own.error * EPS[precision] / EPS["fp32"])
                assert of_bundle.error <= limit, (spec.name, row, of_bundle)
