"""The sample in a bundle, ``parity.safetensors``: proof on a machine without PyTorch. Imports no torch.

At most 8 points over lengths, batches and paddings, the limit among them; one of the 8 is the length guard's refusal,
where there is a limit. For each point: its inputs, and of every output the float64 truth, rounded to float32, at 64
seeded tokens (that are not padding) x 64 seeded channels, or at fewer where outputs are many (the caches of many
layers). The header holds each output's scale max |y64|, PyTorch's own error and the tolerance at that length. At most
2 MB.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.bounds import Bound
from posexport.bundle.manifest import SAMPLE, model_of
from posexport.errors import PosexportError
from posexport.parity.agreement.cosine import mean_cosine
from posexport.parity.criterion import Array, floor
from posexport.parity.grid.inputs import Feeds, draw, size_of
from posexport.parity.grid.point import PADDINGS, GridPoint
from posexport.parity.report.points import Point
from posexport.parity.report.report import Report
from posexport.parity.run.calls import in_calls
from posexport.parity.run.emulation import emulated_if, loads, widened_parts
from posexport.parity.run.refusal import refused
from posexport.parity.run.subject import RunError, Runner
from posexport.spec import BATCH, SEQUENCE, TOKENS, Axis, InputSpec, OutputSpec, PartSpec
from posexport.targets.dtypes import MODEL_DTYPE
from posexport.targets.precisions import PrecisionName
from posexport.targets.providers import DEFAULT_PROVIDER

if TYPE_CHECKING:
    from posexport.sources.source import Source

POINTS = 8
PICKS = 64
LARGEST = 2_000_000
_KEY = "posexport.sample"
#: what the header takes at most, per output of a point
_HEADER = 1000


class Truth(msgspec.Struct, kw_only=True, rename={"torch_worst": "worst_baseline_error"}):
    """What is known of one output at one point, besides the stored numbers."""

    scale: float
    torch_worst: float | None = None
    tolerance: float | None = None


class Header(msgspec.Struct, kw_only=True):
    """The sample's description: ``truths`` has, for each point, one entry an output."""

    version: int = 1
    precision: PrecisionName
    limit: int | None
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    points: list[GridPoint]
    refusals: list[GridPoint]
    truths: list[list[Truth]]
    #: of a quantized graph: the mean cosine of an output at a point is at least so much
    least_cosine: float | None = None


class SampleWriter:
    """Given to ``prove``, it gathers the sample; ``save`` writes it."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.tensors: dict[str, Array] = {}
        self._chosen: list[GridPoint] = []
        self._picks = PICKS
        #: for the header
        self.least_cosine: float | None = None

    def choose(self, points: Sequence[GridPoint], source: "Source") -> None:
        """Settle which of ``points`` to keep. Anything gathered before is dropped."""
        limit = source.envelope.limit if SEQUENCE in source.envelope.limited_axes else None
        last = None if limit is None else GridPoint(batch=1, length=limit + 1, memory=points[0].memory, refusal=True)
        room = POINTS - (last is not None)
        self._chosen, self._picks = _choice(points, source.inputs, source.outputs, room)
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
        if self.header is None or point not in self._chosen:
            return
        number = len(self.header.points)
        self.header.points.append(point)
        self.header.truths.append([])
        for spec in self.header.inputs:
            self.tensors[f"{number}.in.{spec.name}"] = _narrow(feeds[spec.name], spec)
        for out, y64, keep_BT in zip(self.header.outputs, truth, keeps, strict=True):
            flat_NC, keep_N = _flat(y64, out.axes, keep_BT)
            rng = np.random.default_rng([number, len(out.name)])
            rows = _some(np.flatnonzero(keep_N), rng, self._picks)
            columns = _some(np.arange(flat_NC.shape[1]), rng, self._picks)
            name = f"{number}.out.{out.name}"
            self.tensors[f"{name}.rows"] = rows.astype(np.int32)
            self.tensors[f"{name}.columns"] = columns.astype(np.int32)
            self.tensors[f"{name}.values"] = flat_NC[np.ix_(rows, columns)].astype(np.float32)
            scale = float(np.abs(flat_NC[keep_N]).max(initial=0.0))
            self.header.truths[-1].append(Truth(scale=scale if math.isfinite(scale) else 0.0))

    def finish(self, report: Report) -> None:
        """Take each length's tolerance and PyTorch's own error from the finished report."""
        if self.header is None:
            return
        self.header.precision = report.precision
        self.header.least_cosine = self.least_cosine
        known = {(p.length, p.output): p for p in report.points if p.tolerance is not None}
        for point, truths in zip(self.header.points, self.header.truths, strict=True):
            for spec, truth in zip(self.header.outputs, truths, strict=True):
                if (judged := known.get((point.length, spec.name))) is None:
                    continue  # PyTorch overflows there too
                truth.tolerance, truth.torch_worst = judged.tolerance, judged.torch_worst

    def encoded(self) -> bytes:
        """The file's bytes; at most `LARGEST`."""
        from safetensors.numpy import save

        if self.header is None or not self.header.points:
            raise PosexportError("there is no point to store as a sample: nothing was checked")
        tensors = {name: np.ascontiguousarray(array) for name, array in self.tensors.items()}
        data: bytes = save(tensors, {_KEY: msgspec.json.encode(self.header).decode()})
        if len(data) > LARGEST:
            raise RuntimeError(f"the sample has {len(data)} bytes, at most {LARGEST} were planned")
        return data

    def save(self, directory: Path, file: str = SAMPLE) -> Path:
        """Write ``file`` into ``directory``."""
        path = directory / file
        path.write_bytes(self.encoded())
        return path


def check_sample(
    directory: Path,
    *,
    parts: Sequence[PartSpec] = (),
    file: str = SAMPLE,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    tolerance: float | None = None,
    emulate: bool = False,
) -> Report:
    """Run a bundle's model, or its ``parts``, on its stored sample. Needs NumPy and ONNX Runtime only.

    ``tolerance``: the largest error that passes, in place of what the sample says.
    ``emulate``: a copy runs that computes in float32 and rounds, as it does where the provider has no arithmetic of the
    bundle's precision (`posexport.precision.emulate`, which needs onnx_ir).

    Raises PosexportError where the sample is missing or damaged, or the provider does not load.
    """
    header, tensors = _read(directory / file)
    model, precision = model_of(directory, parts), header.precision
    emulated = emulate or not loads(provider, precision)
    with emulated_if(precision if emulated else None, model, parts) as graph:
        points = run_sample(
            header,
            tensors,
            graph,
            parts=widened_parts(parts) if emulated else parts,
            provider=provider,
            threads=threads,
            tolerance=tolerance,
        )
    return Report(
        scope="sample", provider=provider, precision=precision, points=points, tolerance=tolerance, emulated=emulated
    )


def run_sample(
    header: Header,
    tensors: dict[str, Array],
    model: Path | bytes,
    *,
    parts: Sequence[PartSpec] = (),
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    tolerance: float | None = None,
) -> list[Point]:
    """What ``model``, or its ``parts`` in that directory, gives at the points of a sample."""
    runner = Runner.of(header, model, parts, provider=provider, threads=threads)
    at = partial(Point.at, provider=provider, precision=header.precision)
    points: list[Point] = []
    for number, (point, truths) in enumerate(zip(header.points, header.truths, strict=True)):
        feeds = {s.name: tensors[f"{number}.in.{s.name}"].astype(s.dtype) for s in header.inputs}
        try:
            outputs, failure = in_calls(runner, feeds, header, point.calls), ""
        except RunError as err:
            outputs, failure = [], f"ONNX Runtime failed: {err}"
        for index, (spec, truth) in enumerate(zip(header.outputs, truths, strict=True)):
            if failure:
                result: dict[str, Any] = {"verdict": "fail", "note": failure, "tolerance": truth.tolerance}
            else:
                result = _judged(outputs[index], spec, truth, tensors, number, header, tolerance)
            points.append(at(point, output=spec.name, torch_worst=truth.torch_worst, **result))
    for point in header.refusals:
        answer = refused(runner, draw(point, header.inputs), [Bound(SEQUENCE, header.limit or 0)])
        points.append(at(point, verdict="rejected" if answer.good else "fail", note=answer.note))
    return points


def _judged(
    y: Array,
    spec: OutputSpec,
    truth: Truth,
    tensors: dict[str, Array],
    number: int,
    header: Header,
    chosen: float | None,
) -> dict[str, Any]:
    """The fields of a `Point` that say how an output compares with the stored numbers."""
    limit = truth.tolerance
    if chosen is not None or limit is None:
        limit = chosen or floor(header.precision, spec.name)
    name = f"{number}.out.{spec.name}"
    flat_NC, _ = _flat(y, spec.axes, None)
    rows, columns, values_NC = (tensors[f"{name}.{part}"] for part in ("rows", "columns", "values"))
    if not rows.size or rows.max() >= flat_NC.shape[0] or columns.max() >= flat_NC.shape[1]:
        note = f"shape {list(y.shape)} does not hold the sampled entries"
        return {"tolerance": limit, "verdict": "fail", "note": note}
    y_NC = flat_NC[np.ix_(rows, columns)].astype(np.float64)
    gap = float(np.abs(y_NC - values_NC).max())
    if not np.isfinite(gap) or truth.scale == 0.0:
        note = "a number that is not finite" if truth.scale else "the float64 reference is all zero"
        return {"tolerance": limit, "verdict": "fail", "note": note}
    error = gap / truth.scale
    least = header.least_cosine
    found = None if least is None else mean_cosine(y_NC, values_NC)
    low = least is not None and found is not None and chosen is None and found < least
    return {
        "error": error,
        "tolerance": limit,
        "cosine": found,
        "least_cosine": found,
        "verdict": "fail" if low or error > limit else "pass",
        "note": f"the mean cosine {found:.4f} is below {least:g}" if low else "",
    }


def _flat(y: Array, axes: Sequence[Axis], keep_BT: NDArray[np.bool_] | None) -> tuple[Array, NDArray[np.bool_]]:
    """[N, C], channels being the last axis unless that is batch or sequence; and which of the N are no padding."""
    order = [axes.index(name) for name in (BATCH, *TOKENS) if name in axes]
    y = np.moveaxis(y, order, range(len(order)))
    wide = y.ndim > len(order)
    flat_NC = y.reshape(-1, y.shape[-1]) if wide else y.reshape(-1, 1)
    if keep_BT is None or len(order) < 2:
        return flat_NC, np.ones(flat_NC.shape[0], dtype=np.bool_)
    return flat_NC, np.repeat(keep_BT.reshape(-1), flat_NC.shape[0] // keep_BT.size)


def _some(index: NDArray[Any], rng: np.random.Generator, picks: int) -> NDArray[Any]:
    return np.sort(rng.choice(index, size=min(picks, index.size), replace=False))


def _narrow(array: Array, spec: InputSpec) -> Array:
    if spec.role in ("values", "cache"):
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
    return chosen, picks


def _output_size(outputs: Sequence[OutputSpec], points: int, picks: int) -> int:
    """Bytes of so many points' outputs at the most."""
    widths = [axis if isinstance(axis, int) else 1 for axis in (spec.axes[-1] for spec in outputs)]
    return sum(points * (4 * picks * min(picks, width) + 8 * picks + _HEADER) for width in widths)


def _input_size(point: GridPoint, inputs: Sequence[InputSpec]) -> int:
    total = 0
    for spec in inputs:
        total += math.prod(size_of(axis, point) for axis in spec.axes) * (1 if spec.role == "mask" else 4)
    return total


def _read(path: Path) -> tuple[Header, dict[str, Array]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise PosexportError(f"{path} does not exist: this bundle carries no sample, verify it with --against SOURCE")
    if path.stat().st_size > LARGEST:
        raise PosexportError(f"{path} has {path.stat().st_size} bytes, a sample has at most {LARGEST}: convert again")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        header = msgspec.json.decode(text, type=Header)
    except (SafetensorError, msgspec.MsgspecError, OSError, RecursionError) as err:
        raise PosexportError(f"{path} is not a parity sample ({err}): convert again") from err
    expected = {f"{n}.in.{s.name}" for n in range(len(header.points)) for s in header.inputs}
    parts = ("rows", "columns", "values")
    expected |= {
        f"{n}.out.{s.name}.{part}" for n in range(len(header.points)) for s in header.outputs for part in parts
    }
    if expected != set(tensors) or len(header.truths) != len(header.points):
        raise PosexportError(f"{path} does not hold the points it lists: convert again")
    return header, tensors
