"""Converts a case for some targets in this process, and hashes what was written."""

import contextlib
import functools
import gc
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import torch
from torch.onnx._internal.exporter import _registration

import posexport
from ci.digests.cases import ROOT, TARGETS, Case, cases
from ci.digests.text import text
from posexport.conversion.export import build
from posexport.errors import PosexportError
from posexport.graph.merkle import counts, digest, hashed
from tests.traces import Traces

#: operators that a lowering, a pass or a precision chooses, whose numbers help to read a difference
SHOWN = (
    *("Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding", "LayerNormalization", "Softmax"),
    *("SkipLayerNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "BiasGelu", "Gelu"),
    *("RMSNormalization", "MatMul", "Gemm", "MatMulNBits", "MatMulInteger", "DynamicQuantizeLinear", "Conv", "Einsum"),
    *("If", "Loop", "Scan", "Gather", "GatherND", "ScatterND", "Cast", "Reshape", "Transpose", "Where", "Concat"),
)
CASES: dict[str, Case] = {}


def prepare() -> None:
    """Of a process: it reads the exporter's library once, and does not look for garbage in what is imported by now."""
    CASES.update(cases())
    library = _registration.onnxscript_apis
    library.get_torchlib_ops = functools.cache(library.get_torchlib_ops)
    gc.collect()
    gc.freeze()


def rows(name: str, targets: Sequence[str], texts: Path | None, fresh: bool) -> list[dict[str, Any]]:
    """What each target's bundle is; ``fresh``: without sharing what was traced for another target."""
    case = CASES[name]
    trace = build.trace
    once = Traces(None)
    once.fresh = fresh
    build.trace = once
    try:
        with tempfile.TemporaryDirectory() as folder:
            return [{"case": name, "target": each, **_row(case, each, Path(folder), texts)} for each in targets]
    finally:
        build.trace = trace


def _row(case: Case, target: str, folder: Path, texts: Path | None) -> dict[str, Any]:
    """Digest, nodes and operators of what is written, or the sentence that refuses it."""
    torch.manual_seed(0)
    bundle = folder / "bundle"
    any_size = mock.patch("posexport.graph.precision.selection.shrinking", lambda chosen, _: chosen)
    try:
        asked = {**case.source(folder / target), **case.options, **TARGETS[target]}
        with any_size if asked.get("precision") == "int8" else contextlib.nullcontext():
            posexport.convert(asked.pop("source"), bundle, verify=False, threads=1, **asked)
    except PosexportError as err:
        return {"refused": _without_folders(str(err), folder)}
    except Exception as err:  # noqa: BLE001 (a defect, which must not end the other cases)
        return {"failed": _without_folders(f"{type(err).__name__}: {err}", folder)[:500]}
    graphs = {file.relative_to(bundle).as_posix(): onnx.load(file) for file in sorted(bundle.rglob("*.onnx"))}
    operators = sum((counts(model) for model in graphs.values()), start=counts(onnx.ModelProto()))
    if texts is not None:
        for file, model in graphs.items():
            name = f"{case.name}~{target}~{file}".replace("/", "+").replace(":", "+").replace(" ", "-")
            (texts / f"{name}.txt").write_text(text(model))
    shutil.rmtree(bundle)
    shown = {name: operators[key] for name in SHOWN for key in (name, f"com.microsoft::{name}") if operators[key]}
    return {
        "digest": hashed(*((file, digest(model)) for file, model in graphs.items())),
        "nodes": operators.total(),
        "operators": shown,
    }


def _without_folders(sentence: str, folder: Path) -> str:
    """A refusal, the same on every machine and in every run."""
    sentence = re.sub(r"/\S*/posexport-trace-\w+", "posexport-trace", sentence)
    return sentence.replace(f"{folder}/", "").replace(f"{ROOT}/", "")
