"""Where a wrong output starts: the first module, in order of computation, with right inputs and a wrong output.

The definition's values come from hooks on a float64 copy, the graph's from additional outputs. A value is wrong when
its error exceeds the tolerance it would have as an output, on its scale.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from posexport.base.spec import ENCODER_SEQUENCE
from posexport.base.targets.dtypes import BY_PRECISION
from posexport.base.targets.precisions import PrecisionName
from posexport.errors import PosexportError
from posexport.graph.ops.dropped_scores import drops
from posexport.proof.criterion import Array, tolerance
from posexport.proof.grid.inputs import inputs_of, keep_mask, tokens_of
from posexport.proof.grid.point import GridPoint
from posexport.proof.locate.capture import Checkpoint, capture
from posexport.proof.locate.graph_values import Exposed, expose
from posexport.proof.proof import Outcome, Proof
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.proof.report.points import Point
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError
from posexport.sources.source import Source
from posexport.sources.torch_fixes.module_precision import in_precision

#: protobuf cannot hold more
_LARGEST = 1_500_000_000
_NOWHERE = "It could not be located"


@dataclass(frozen=True)
class _Compared:
    checkpoint: Checkpoint
    error: float
    allowed: float

    @property
    def wrong(self) -> bool:
        return not self.error <= self.allowed


@dataclass(frozen=True)
class Location:
    """The check: where the shortest and simplest failure starts. Of a source of parts ``model`` is their directory."""

    source: Source
    model: Path | bytes
    threads: int = 0

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with the sentence of `locate`, where a value is wrong."""
        del outcome
        failed = [p for p in report.points if p.verdict == "fail" and p.tolerance is not None]
        if not failed:
            return report
        wrong = min(failed, key=lambda p: (p.length, p.padding != "none", p.batch))
        sentence = locate(self.source, self.model, wrong, precision=proof.judge.precision, threads=self.threads)
        return msgspec.structs.replace(report, failure_location=sentence)


def locate(
    source: Source, model: Path | bytes, wrong: Point, *, precision: PrecisionName = "fp32", threads: int = 0
) -> str:
    """A sentence that names the layer and the stage at which ``wrong`` starts, or says why none can be named.

    ``precision``: what the graph computes in. Stages: table, scores, softmax, context, attention, feed-forward,
    normalisation, output.
    """
    point = msgspec.structs.replace(wrong.point, convolutions=tuple(source.limits.convolutions))
    try:
        # it looks at one call, without past tokens
        parts = [part.spec for part in source.parts if part.spec.when != "later"]
        files = [model / part.file for part in parts] if parts and isinstance(model, Path) else [model]
        graphs = [_load(file) for file in files]
        exposed = expose(graphs, parts)
        if not exposed.segments:
            return f"{_NOWHERE}: no node of the graph says which module it was traced from."
        compared = _compare(source, exposed, point, wrong, precision, threads)
    except (RunError, PosexportError, _TooLargeError) as err:
        return f"{_NOWHERE}: {err}."
    if not compared:
        return f"{_NOWHERE}: no value of the graph has the shape of a module's."
    parameters = list(dict.fromkeys(name for graph in graphs for name in _changed(source, graph)))
    first = next((item for item in compared if item.wrong), None)
    if first is None:
        return _all_right(compared, parameters)
    return _sentence(compared, first, parameters)


class _TooLargeError(Exception):
    """The model does not fit into one protobuf."""


def _load(model: Path | bytes) -> ir.Model:
    if isinstance(model, bytes):
        return ir.from_proto(onnx.load_from_string(model))
    size = sum(file.stat().st_size for file in model.parent.glob(f"{model.name}*"))
    if size > _LARGEST:
        raise _TooLargeError(f"the model has {size} bytes, at most {_LARGEST} can be taken apart")
    return ir.from_proto(onnx.load(model))


def _compare(
    source: Source, exposed: Exposed, point: GridPoint, wrong: Point, precision: PrecisionName, threads: int
) -> list[_Compared]:
    definition = PrecisionCopy(source.module, BY_PRECISION[precision].torch, outputs=len(source.outputs), fresh=True)
    feeds = inputs_of(point, source, definition)
    truth = _captured(source, feeds, torch.float64)
    baseline = {_key(item): item.value for item in _captured(source, feeds, BY_PRECISION[precision].torch)}
    values = exposed.run(feeds, provider=wrong.provider, threads=threads)
    keeps = [] if point.image else [keep_mask(point), tokens_of(keep_mask(point), point.convolutions)]
    keeps += [keep_mask(point, ENCODER_SEQUENCE)] if point.encoder_length is not None else []
    calls: dict[str, int] = {}
    for item in truth:
        calls[item.module] = max(calls.get(item.module, 0), item.call + 1)
    softmaxes = sum(item.side == "softmax" for item in truth)
    compared = []
    for item in truth:
        names = _names(item, exposed, calls[item.module], softmaxes)
        # blocks of queries may end in padding
        rows = slice(None) if item.value.ndim < 3 else slice(item.value.shape[-2])
        cut = [
            values[name][..., rows, :] if values[name].ndim > 2 else values[name] for name in names if name in values
        ]
        cut = [_with_tokens(item.value.shape, value) for value in cut]
        shaped = [value for value in cut if value.shape == item.value.shape]
        if not shaped or _key(item) not in baseline:
            continue
        # what enters is any of several values; what leaves is the last one made
        candidates = shaped if item.side == "in" else shaped[:1]
        allowed = tolerance(precision, "", _error(baseline[_key(item)], item, keeps))
        compared.append(_Compared(item, min(_error(value, item, keeps) for value in candidates), allowed))
    return compared


def _with_tokens(shape: tuple[int, ...], value: Array) -> Array:
    """``value`` with axes of batch and tokens, where a graph keeps a row for every token of all ([B * T, C])."""
    rows = value.ndim == 2 and len(shape) == 3 and value.shape == (shape[0] * shape[1], shape[2])
    return value.reshape(shape) if rows else value


def _captured(source: Source, feeds: Mapping[str, Array], dtype: torch.dtype) -> list[Checkpoint]:
    reference = PrecisionCopy(source.module, dtype, outputs=len(source.outputs), fresh=True)
    return capture(in_precision(copy.deepcopy(source.module), dtype).eval(), reference.tensors(dict(feeds)))


def _key(item: Checkpoint) -> tuple[str, int, str, int]:
    return item.module, item.call, item.side, item.softmax


def _names(item: Checkpoint, exposed: Exposed, calls: int, softmaxes: int) -> list[str]:
    if item.side in ("scores", "softmax"):
        # an attention computed in another way (in blocks, by a fused operator) has no softmax to look at
        return [exposed.softmaxes[item.softmax][item.side == "softmax"]] if len(exposed.softmaxes) == softmaxes else []
    segments = exposed.segments.get(item.module, [])
    if len(segments) != calls:
        return []  # calls of a shared module in succession look like one
    segment = segments[item.call]
    return segment.entering if item.side == "in" else segment.leaving


def _error(y: Array, item: Checkpoint, keeps: list[NDArray[np.bool_]]) -> float:
    """Relative error over elements that are neither padding nor masked; infinite where one is not finite."""
    truth = item.value
    counts = np.broadcast_to(_real(truth.shape, keeps), truth.shape)
    if item.side == "scores":
        counts = counts & ~drops(truth)  # how low a masked score is depends on the type
    truth, y = truth[counts].astype(np.float64), y[counts].astype(np.float64)
    scale = np.abs(truth).max(initial=0.0)
    if not np.isfinite(y).all():
        return np.inf
    gap = float(np.abs(y - truth).max(initial=0.0))
    return gap / float(scale) if scale else (0.0 if gap == 0.0 else np.inf)


def _real(shape: tuple[int, ...], keeps: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Entries of real tokens, for [B, T, ...] and [B, H, T, ...]."""
    for keep_BT in keeps:
        B, T = keep_BT.shape
        if shape[:2] == (B, T):
            return keep_BT.reshape(B, T, *[1] * (len(shape) - 2))
        if len(shape) == 4 and shape[0] == B and shape[2] == T:
            return keep_BT.reshape(B, 1, T, 1)
    return np.ones((), dtype=np.bool_)


def _changed(source: Source, model: ir.Model) -> list[str]:
    """Initializers with the name of a parameter and other values."""
    state = source.module.state_dict()
    changed = []
    for name, value in model.graph.initializers.items():
        if name in state and value.const_value is not None:
            expected, got = state[name].detach().cpu().numpy(), value.const_value.numpy()
            if got.shape == expected.shape and not np.array_equal(got, expected):
                changed.append(f"{name}{_rows(got, expected)}")
    return changed


def _rows(got: Array, expected: Array) -> str:
    if expected.ndim < 2:
        return ""
    rows = np.flatnonzero((got != expected).reshape(len(expected), -1).any(1))
    return f" row {rows[0]}" if len(rows) == 1 else f" from row {rows[0]} on"


def _all_right(compared: list[_Compared], parameters: list[str]) -> str:
    if parameters:
        return f"Every module that was looked at is right, but {_differ(parameters)}."
    last = compared[-1].checkpoint.module
    return (
        f"{_NOWHERE}: without ONNX Runtime's graph optimisations none of {len(compared)} values, up to {last}, is off "
        f"by more than is allowed; at fault is an optimisation, what follows {last}, or many small errors."
    )


def _sentence(compared: list[_Compared], first: _Compared, parameters: list[str]) -> str:
    item = first.checkpoint
    before = compared[: compared.index(first)]
    calls = max(c.checkpoint.call for c in compared if c.checkpoint.module == item.module) + 1
    path = item.module if item.side != "in" else item.module.rpartition(".")[0]
    stage = _stage(item, path, {c.checkpoint.side for c in before if c.checkpoint.module == path})
    layer = _layer(item, calls)
    where = ", ".join(word for word in (layer, stage) if word)
    side = {"in": f"what enters {item.module}", "out": f"what leaves {item.module}"}
    what = side.get(item.side, f"the {item.side} in {item.module}")
    cause = f"; {_differ(parameters)}" if parameters else ""
    table = bool(parameters) and stage in ("scores", "attention", "context") and any(map(_is_table, parameters))
    if table:
        where += ", table"
    size = f"error {first.error:.1e}, {first.allowed:.1e} is allowed there"
    right = (
        f"everything before it is right ({len(before)} values)" if before else "nothing before it could be looked at"
    )
    return f"It starts in {where}: {what} is wrong ({size}); {right}{cause}."


def _stage(item: Checkpoint, path: str, seen: set[str]) -> str:
    if item.side in ("scores", "softmax"):
        return item.side
    words = path.lower()
    last = words.rpartition(".")[2]
    if "embed" in words:
        return "table"
    if "norm" in last:
        return "normalisation"
    if "attention" in words or "attn" in words:
        if item.side == "in":
            # q, k and v are right and what the output projection reads is not
            return "context" if "softmax" in seen else "attention"
        return "attention"
    if re.search(r"feed_?forward|mlp|ffn|intermediate", words):
        return "feed-forward"
    if re.search(r"^(head|cls|classifier|lm_head|qa_outputs|pooler)\b", words) or not path:
        return "output"
    return f"module {path}"


def _layer(item: Checkpoint, calls: int) -> str:
    numbers = [word for word in item.module.split(".") if word.isdigit()]
    if not numbers:
        return ""
    # layers that share their weights are numbered by their calls
    return f"layer {item.call}" if calls > 1 else f"layer {numbers[0]}"


def _is_table(parameter: str) -> bool:
    return "encoding" in parameter or "table" in parameter or "embed" in parameter


def _differ(parameters: list[str]) -> str:
    named = ", ".join(parameters[:3]) + (" ..." if len(parameters) > 3 else "")
    return f"the graph does not hold the source's values of {named}"
