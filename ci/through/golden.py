"""Every golden checkpoint by posexport's definition and through transformers: both must give the same.

Run by `ci/through/run --golden`, which resumes: a row that ci/results/through_golden.jsonl has for the installed
versions, and that is as golden.yaml says, is left out. A checkpoint is converted with ``--definition transformers``,
which proves its graph against transformers' model at a few lengths. At the points that tests/golden stores of it,
transformers' model as it was converted and its graph are then compared with the definition in float64.
"""

import copy
import fnmatch
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file

import posexport
from posexport.base.spec import SEQUENCE, TOKENS, TOTAL, OutputSpec
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.errors import PosexportError
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.sources.torch_fixes.module_precision import in_precision

ROOT = Path(__file__).parent.parent.parent
GOLDEN, RECORD = ROOT / "tests/golden", ROOT / "ci/results/through_golden.jsonl"
#: lengths of the proof, beside those that the graph's branches need; the stored points have more
LENGTHS = [1, 17]
#: of the largest element: what the two may differ by, in float64 (transformers computes parts in float32) and the graph
ROUNDING = {"definition": 1e-5, "graph": 1e-4}

Tensors = dict[str, torch.Tensor]


def expected() -> dict[str, str]:
    """Golden checkpoints by their names: a part of the sentence with which they are refused, or nothing."""
    table: dict[str, str] = yaml.safe_load(Path(__file__).with_name("golden.yaml").read_text())
    names = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
    fitting = {name: [said for key, said in table.items() if fnmatch.fnmatch(name, key)] for name in names}
    if unused := [key for key in table if not fnmatch.filter(names, key)]:
        sys.exit(f"golden.yaml: no checkpoint is called {', '.join(unused)}")
    return {name: (said or [""])[0] for name, said in fitting.items()}


def recorded() -> dict[str, dict[str, Any]]:
    """The rows of ci/results/through_golden.jsonl, by checkpoint."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return {row["checkpoint"]: row for row in map(json.loads, lines)}


def points(name: str) -> dict[str, Tensors]:
    """The stored inputs of a checkpoint, by point; what else is stored there is not asked for."""
    found: dict[str, Tensors] = {}
    for key, value in load_file(GOLDEN / name / "expected.safetensors").items():
        point, _, port = key.partition(".")
        found.setdefault(point, {})[port] = value
    return found


def difference(name: str, own: Source, through: Source, bundle: Path) -> dict[str, float]:
    """The largest difference of the answers over their scale, of ``through`` in float64 and of its graph.

    Raises:
        ValueError: the numbers are not finite.
    """
    session = posexport.load(bundle)
    worst: dict[str, float] = {}
    modules = [in_precision(copy.deepcopy(source.module), torch.float64).eval() for source in (own, through)]
    names = {spec.name for spec in through.outputs if spec.compared}
    shared = [spec for spec in own.outputs if spec.name in names]
    for point, stored in {**points(name), "drawn": drawn(through)}.items():
        if not fits(stored, through):
            continue
        want = _answers(modules[0], own, stored)
        graph = session.run(_given(through, stored, np.float32), outputs=[spec.name for spec in shared])
        for kind, got in (("definition", _answers(modules[1], through, stored)), ("graph", graph)):
            for spec in shared:
                first = own.promises.reads_first_token
                off = _off(spec, np.asarray(got[spec.name]), want[spec.name], stored, first=first)
                worst[kind] = max(worst.get(kind, 0.0), off)
        if not all(np.isfinite(value) for value in worst.values()):
            raise ValueError(f"{point}: no finite difference")
    return worst


def drawn(source: Source) -> Tensors:
    """An example of what ``source`` takes, but a cache: images that are of one size there may be stored of others."""
    inputs = [spec for spec in source.inputs if spec.role not in ("cache", "positions")]
    sizes = axis_sizes(source.inputs, source.limits.trace_sizes)
    sizes |= {TOTAL: sizes[SEQUENCE]} if TOTAL in sizes else {}
    return example(inputs, sizes)


def fits(stored: Mapping[str, torch.Tensor], source: Source) -> bool:
    """Whether a point has what ``source`` takes, of the sizes that it has one of, and no padding it is not told of."""
    masks = [name for name in stored if name.endswith("attention_mask")]
    if any(not stored[name].all() for name in masks) and not any(spec.role == "mask" for spec in source.inputs):
        return False
    for spec in source.inputs:
        if spec.name not in stored:
            if spec.role in ("tokens", "values"):
                return False
        elif any(isinstance(a, int) and a != n for a, n in zip(spec.axes, stored[spec.name].shape, strict=True)):
            return False
    return True


def _given(source: Source, stored: Mapping[str, torch.Tensor], dtype: Any) -> dict[str, Any]:
    """The stored inputs that a source takes, as arrays."""
    names = {spec.name: spec for spec in source.inputs}
    arrays = {name: value.numpy() for name, value in stored.items() if name in names}
    return {name: x.astype(np.int64 if names[name].dtype == "int64" else dtype) for name, x in arrays.items()}


def _answers(module: torch.nn.Module, source: Source, stored: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    given = {name: torch.from_numpy(x) for name, x in _given(source, stored, np.float64).items()}
    batch = len(next(iter(given.values())))
    for spec in source.inputs:
        if spec.role == "cache":
            shape = [{"batch_size": batch}.get(axis, 0) if isinstance(axis, str) else axis for axis in spec.axes]
            given[spec.name] = torch.zeros(shape, dtype=torch.float64)
    with torch.inference_mode():
        outputs = module(**given)
    return {spec.name: value.numpy() for spec, value in zip(source.outputs, outputs, strict=True)}


def _off(
    spec: OutputSpec, got: np.ndarray, want: np.ndarray, stored: Mapping[str, torch.Tensor], *, first: bool
) -> float:
    """The largest difference at tokens that are no padding, over the scale.

    ``first``: an answer for a row is read at its first token. What that gives where it is padding is another thing in
    transformers and in the definition, and not compared.
    """
    if got.shape != want.shape:
        raise ValueError(f"{spec.name} has the shape {got.shape}, and of the definition {want.shape}")
    kept = np.ones(want.shape[:1], dtype=bool)
    prefix = "decoder_" if "decoder_input_ids" in stored and spec.name == "logits" else ""
    mask = stored.get(f"{prefix}attention_mask")
    if mask is not None and any(axis in TOKENS for axis in spec.axes):
        axis = next(index for index, axis in enumerate(spec.axes) if axis in TOKENS)
        if want.shape[axis] == mask.shape[1]:
            got, want, kept = np.moveaxis(got, axis, 1), np.moveaxis(want, axis, 1), mask.numpy() != 0
    elif mask is not None and first and mask.shape[0] == want.shape[0]:
        kept = mask.numpy()[:, 0] != 0
    return float(np.abs(got[kept] - want[kept]).max() / np.abs(want[kept]).max())


def compared(name: str, into: Path) -> dict[str, Any]:
    """The row of a checkpoint: same, refused, or failed, and what was said or measured."""
    began, bundle = time.monotonic(), into / "golden" / name
    off: dict[str, float] = {}
    try:
        directory = GOLDEN / name
        own = checkpoint_source(directory, task=None, allow_pickle=False)
        through = checkpoint_source(directory, task=None, allow_pickle=False, definition="transformers")
        lengths = LENGTHS if any(SEQUENCE in spec.axes for spec in through.inputs) else None
        result = posexport.convert(str(directory), bundle, definition="transformers", lengths=lengths, force=True)
        off = difference(name, own, through, bundle)
        how, said = "same", through.task
        if not result.good:
            how, said = "failed", result.verdict
        elif bad := [kind for kind, value in off.items() if not value <= ROUNDING[kind]]:
            how, said = "failed", f"differs from the definition: {bad[0]} by {off[bad[0]]:.1e} of the scale"
    except PosexportError as err:
        how, said = "refused", str(err).replace(f"{directory}/", "").replace(str(directory), name)
    except Exception as err:  # noqa: BLE001 (a defect, which must not end the other rows)
        how, said = "failed", f"{type(err).__name__}: {err}"[:500]
    row = {
        "checkpoint": name,
        "outcome": how,
        "said": said,
        "off": {kind: float(f"{x:.1e}") for kind, x in off.items()},
    }
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    return {**row, "seconds": round(time.monotonic() - began), "commit": commit}


def right(row: Mapping[str, Any], refused: str) -> bool:
    """Whether a row is as golden.yaml says."""
    return bool(row["outcome"] == "refused" and refused in row["said"] if refused else row["outcome"] == "same")


def run(names: list[str], into: Path, versions: Mapping[str, str], *, again: bool) -> list[str]:
    """Compare the checkpoints that are not recorded yet; those whose rows are not as they must be."""
    plan, bad = expected(), []
    for name in names or plan:
        row = recorded().get(name)
        if again or row is None or row["versions"] != versions or not right(row, plan[name]):
            row = {**compared(name, into), "versions": dict(versions)}
            lines = [json.dumps(each) for _, each in sorted({**recorded(), name: row}.items())]
            written = RECORD.with_suffix(".tmp")
            written.write_text("\n".join(lines) + "\n")
            written.replace(RECORD)
            print(
                json.dumps({key: row[key] for key in ("checkpoint", "outcome", "said", "off", "seconds")}), flush=True
            )
        bad += [] if right(row, plan[name]) else [name]
    return bad
