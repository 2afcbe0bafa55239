"""The sample in a bundle, ``parity.safetensors``: collected while the proof runs, for machines without PyTorch.

At most 8 points over lengths, batches and paddings, the limit included. One is the length guard's rejection, if there
is a limit; one is padded; one point of a decoder runs in several calls through the KV cache. Each point has its inputs,
and the float64 values of every output, rounded to float32, at 64 seeded tokens (no padding) x 64 seeded channels, or at
fewer for many outputs (the caches of many layers). The header holds each output's scale max |y64|, PyTorch's float32
baseline error and the tolerance at that length. At most 2 MB. The format is safetensors: 8 bytes with the size of a
JSON header, the header, and little-endian arrays (``examples/self-check.mjs`` reads it in JavaScript).

Imports no torch.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import BATCH, CARRIED, SEQUENCE, TOKENS, Axis, InputSpec, OutputSpec, compared_outputs
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.precisions import PrecisionName
from posexport.errors import PosexportError
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds, size_of
from posexport.proof.grid.point import PADDINGS, GridPoint
from posexport.proof.report.report import Report
from posexport.run.bundle.manifest import SAMPLE

if TYPE_CHECKING:
    from posexport.sources.source import Source

LARGEST = 2_000_000
#: the key of the header in the file's metadata
KEY = "posexport.sample"


class StoredScale(msgspec.Struct, kw_only=True):
    """Scale, PyTorch's error and tolerance of one output at one point."""

    scale: float
    worst_baseline_error: float | None = None
    tolerance: float | None = None


class Header(msgspec.Struct, kw_only=True):
    """The description of the sample; ``truths``: for each point, one entry per output."""

    version: int = 1
    precision: PrecisionName
    limit: int | None
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    points: list[GridPoint]
    refusals: list[GridPoint]
    truths: list[list[StoredScale]]


def read(path: Path) -> tuple[Header, dict[str, Array]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise PosexportError(f"{path} does not exist: this bundle carries no sample, verify it with --against SOURCE")
    if path.stat().st_size > LARGEST:
        raise PosexportError(f"{path} has {path.stat().st_size} bytes, a sample has at most {LARGEST}: convert again")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        header = msgspec.json.decode(text, type=Header)
    except (SafetensorError, msgspec.MsgspecError, OSError, RecursionError) as err:
        raise PosexportError(f"{path} is not a parity sample ({err}): convert again") from err
    expected = {f"{n}.in.{s.name}" for n in range(len(header.points)) for s in header.inputs}
    suffixes = ("rows", "columns", "values")
    expected |= {
        f"{n}.out.{s.name}.{suffix}"
        for n in range(len(header.points))
        for s in compared_outputs(header)
        for suffix in suffixes
    }
    if expected != set(tensors) or len(header.truths) != len(header.points):
        raise PosexportError(f"{path} does not hold the points it lists: convert again")
    return header, tensors


def flat(y: Array, axes: Sequence[Axis], keep_BT: NDArray[np.bool_] | None) -> tuple[Array, NDArray[np.bool_]]:
    """``y`` as [N, C], and a mask [N] without padding. Channels are the last axis unless it is batch or sequence."""
    order = [axes.index(name) for name in (BATCH, *TOKENS) if name in axes]
    y = np.moveaxis(y, order, range(len(order)))
    wide = y.ndim > len(order)
    flat_NC = y.reshape(-1, y.shape[-1]) if wide else y.reshape(-1, 1)
    if keep_BT is None or len(order) < 2:
        return flat_NC, np.ones(flat_NC.shape[0], dtype=np.bool_)
    return flat_NC, np.repeat(keep_BT.reshape(-1), flat_NC.shape[0] // keep_BT.size)


POINTS = 8
PICKS = 64
#: what the header takes at most, per output of a point
_HEADER = 1000


class SampleWriter:
    """Collects the sample while the reference of a proof computes; `encoded` serializes it."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.tensors: dict[str, Array] = {}
        self._chosen: list[GridPoint] = []
        #: the point whose first row is stored, where none fits as a whole
        self._first_row: GridPoint | None = None
        self._picks = PICKS

    def choose(self, points: Sequence[GridPoint], source: "Source") -> None:
        """Select the points to store, and drop those stored before."""
        limit = source.limits.max_length if SEQUENCE in source.limits.limited_axes else None
        beyond = GridPoint(
            batch=1,
            length=(limit or 0) + 1,
            encoder_length=points[0].encoder_length,
            sizes=points[0].sizes,
            must_be_rejected=True,
        )
        last = None if limit is None else beyond
        room = POINTS - (last is not None)
        computed = [point for point in points if not point.cached]
        self._chosen, self._picks = _choice(computed, source.inputs, compared_outputs(source), room)
        self._first_row = None if self._chosen else _smallest_row(computed, source.inputs)
        self.tensors = {}
        self.header = Header(
            precision=MODEL_DTYPE.precision,
            limit=limit,
            inputs=list(source.inputs),
            outputs=list(source.outputs),
            points=[],
            refusals=[] if last is None else [last],
            truths=[],
        )

    def add(
        self, point: GridPoint, feeds: Feeds, truth: Sequence[Array], keeps: Sequence[NDArray[np.bool_] | None]
    ) -> None:
        """Keep ``point`` if it was chosen; ``truth`` are all of its float64 outputs, ``keeps`` their real tokens."""
        if self.header is None or point not in (*self._chosen, self._first_row):
            return
        if point == self._first_row:
            point, feeds = _row(point), {spec.name: _first(feeds[spec.name], spec) for spec in self.header.inputs}
            truth = [_first(y64, spec) for y64, spec in zip(truth, compared_outputs(self.header), strict=True)]
            keeps = [None if keep_BT is None else keep_BT[:1] for keep_BT in keeps]
        number = len(self.header.points)
        self.header.points.append(point)
        self.header.truths.append([])
        for spec in self.header.inputs:
            self.tensors[f"{number}.in.{spec.name}"] = _narrow(feeds[spec.name], spec)
        for out, y64, keep_BT in zip(compared_outputs(self.header), truth, keeps, strict=True):
            flat_NC, keep_N = flat(y64, out.axes, keep_BT)
            rng = np.random.default_rng([number, len(out.name)])
            rows = _some(np.flatnonzero(keep_N), rng, self._picks)
            columns = _some(np.arange(flat_NC.shape[1]), rng, self._picks)
            name = f"{number}.out.{out.name}"
            self.tensors[f"{name}.rows"] = rows.astype(np.int32)
            self.tensors[f"{name}.columns"] = columns.astype(np.int32)
            self.tensors[f"{name}.values"] = flat_NC[np.ix_(rows, columns)].astype(np.float32)
            kept_NC = flat_NC[keep_N]
            scale = float(np.abs(kept_NC[~np.isneginf(kept_NC)]).max(initial=0.0))
            self.header.truths[-1].append(StoredScale(scale=scale if math.isfinite(scale) else 0.0))

    def finish(self, report: Report) -> None:
        """Copy each length's tolerance and PyTorch's float32 baseline error from the finished report."""
        if self.header is None:
            return
        self.header.precision = report.precision
        known = {(p.length, p.output): p for p in report.points if p.tolerance is not None}
        for point, truths in zip(self.header.points, self.header.truths, strict=True):
            for spec, truth in zip(compared_outputs(self.header), truths, strict=True):
                if (judged := known.get((point.length, spec.name))) is None:
                    continue  # PyTorch overflows there too
                truth.tolerance, truth.worst_baseline_error = judged.tolerance, judged.worst_baseline_error

    @property
    def is_empty(self) -> bool:
        """Whether no point fits."""
        return self.header is None or not self.header.points

    def encoded(self) -> bytes:
        """The file's bytes; at most `LARGEST`."""
        from safetensors.numpy import save

        if self.header is None or self.is_empty:
            raise PosexportError("there is no point to store as a sample: nothing was checked")
        tensors = {name: np.ascontiguousarray(array) for name, array in self.tensors.items()}
        data: bytes = save(tensors, {KEY: msgspec.json.encode(self.header).decode()})
        if len(data) > LARGEST:
            raise RuntimeError(f"the sample has {len(data)} bytes, at most {LARGEST} were planned")
        return data

    def save(self, directory: Path, file: str = SAMPLE) -> Path:
        """Write ``file`` into ``directory``."""
        path = directory / file
        path.write_bytes(self.encoded())
        return path


def _some(index: NDArray[Any], rng: np.random.Generator, picks: int) -> NDArray[Any]:
    return np.sort(rng.choice(index, size=min(picks, index.size), replace=False))


def _row(point: GridPoint) -> GridPoint:
    """A batch whose first row is without padding, as that row alone."""
    return msgspec.structs.replace(point, batch=1, padding="none")


def _first(array: Array, spec: InputSpec | OutputSpec) -> Array:
    return array.take([0], spec.axes.index(BATCH)) if BATCH in spec.axes else array


def _smallest_row(points: Sequence[GridPoint], inputs: Sequence[InputSpec]) -> GridPoint | None:
    """The point with the smallest first row, where that fits: a recording of 30 seconds may take most of the file."""
    whole_rows = [point for point in points if point.padding in ("none", "ragged", "ragged-right") and not point.calls]
    smallest = min(whole_rows, key=lambda point: _input_size(_row(point), inputs), default=None)
    return None if smallest is None or _input_size(_row(smallest), inputs) > LARGEST * 4 // 5 else smallest


def _narrow(array: Array, spec: InputSpec) -> Array:
    if spec.role in ("values", *CARRIED):
        return array.astype(np.float32)
    return array.astype(np.int8 if spec.role == "mask" else np.int32)


def _choice(
    points: Sequence[GridPoint], inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], room: int
) -> tuple[list[GridPoint], int]:
    """Lengths spread evenly, shortest and longest among them, paddings and batches in turn, what fits in the file.

    And how many tokens and channels to keep of every output.
    """
    room = max(1, min(room, LARGEST // 2 // (len(outputs) * _HEADER)))
    picks = PICKS
    while picks > 1 and _output_size(outputs, room, picks) > LARGEST * 3 // 4:
        picks //= 2
    lengths = sorted({point.length for point in points})
    steps = min(room, len(lengths))
    spread = {lengths[round(i * (len(lengths) - 1) / max(1, steps - 1))] for i in range(steps)}
    budget = LARGEST - _output_size(outputs, room, picks) - 20_000
    chosen: list[GridPoint] = []
    paddings = [padding for padding in PADDINGS if any(point.padding == padding for point in points)]
    # the longest first: it is the one that must not be left out for want of room
    for turn, length in enumerate(sorted(spread, reverse=True)):
        # in turn: ragged, left, right, none, so that the longest is also the hardest
        liked = paddings[-1 - turn % len(paddings)]
        here = sorted((p for p in points if p.length == length), key=lambda p: (p.padding != liked, -p.batch))
        for point in here:
            size = _input_size(point, inputs)
            if size <= budget:
                chosen.append(point)
                budget -= size
                break
    total = sum(_input_size(point, inputs) for point in chosen) + budget
    for has in (lambda point: point.padding != "none", lambda point: bool(point.calls)):
        chosen = _with(chosen, points, has, inputs, total)
    return chosen, picks


def _with(
    chosen: list[GridPoint],
    points: Sequence[GridPoint],
    has: Callable[[GridPoint], bool],
    inputs: Sequence[InputSpec],
    total: int,
) -> list[GridPoint]:
    """``chosen`` with at least one point that ``has`` the property, if any of ``points`` does and fits in ``total``.

    The shortest point with a substitute of the same length and no larger batch is replaced.
    """
    if any(map(has, chosen)):
        return chosen
    room = total - sum(_input_size(point, inputs) for point in chosen)
    for old in sorted(chosen, key=lambda point: (point.padding != "none", point.length)):
        most = room + _input_size(old, inputs)
        similar = [new for new in points if has(new) and new.length == old.length and new.batch <= old.batch]
        substitutes = [new for new in similar if _input_size(new, inputs) <= most]
        if substitutes:
            new = max(substitutes, key=lambda point: (point.batch, point.padding == old.padding))
            return [new if point is old else point for point in chosen]
    return chosen


def _output_size(outputs: Sequence[OutputSpec], points: int, picks: int) -> int:
    """The largest size of the outputs of ``count`` points, in bytes."""
    lasts = [spec.axes[-1] for spec in outputs]
    widths = [axis if isinstance(axis, int) else 1 if axis in (BATCH, *TOKENS) else picks for axis in lasts]
    return sum(points * (4 * picks * min(picks, width) + 8 * picks + _HEADER) for width in widths)


def _input_size(point: GridPoint, inputs: Sequence[InputSpec]) -> int:
    total = 0
    for spec in inputs:
        total += math.prod(size_of(axis, point) for axis in spec.axes) * (1 if spec.role == "mask" else 4)
    return total
