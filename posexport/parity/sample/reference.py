"""The stored sample as the reference of a proof. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posexport.parity.criterion import Array, Measured, is_exact
from posexport.parity.grid.point import GridPoint
from posexport.parity.proof import Case, PerLength, Progress, Value
from posexport.parity.sample.header import Header, flat
from posexport.spec import OutputSpec

#: PyTorch's error is stored for a length, not for a point
_NOT_STORED = Measured(float("nan"), 0.0)


@dataclass(frozen=True)
class Stored:
    """Stored entries of one output at one point: ``values_NC`` [rows, columns] of the output flattened to [N, C]."""

    spec: OutputSpec
    scale: float
    rows: Array
    columns: Array
    values_NC: Array
    baseline: Measured = _NOT_STORED

    @property
    def output(self) -> str:
        return self.spec.name

    def measure(self, y: Array) -> Measured:
        """The error of the stored entries."""
        flat_NC, _ = flat(y, self.spec.axes, None)
        if not self.rows.size or self.rows.max() >= flat_NC.shape[0] or self.columns.max() >= flat_NC.shape[1]:
            return Measured(np.inf, 0.0, f"shape {list(y.shape)} does not hold the sampled entries")
        if is_exact(y):
            stored_alike = flat_NC[np.ix_(self.rows, self.columns)].astype(self.values_NC.dtype)
            return Measured(float((stored_alike != self.values_NC).mean()), 1.0)
        gap = float(np.abs(flat_NC[np.ix_(self.rows, self.columns)].astype(np.float64) - self.values_NC).max())
        if not np.isfinite(gap) or self.scale == 0.0:
            note = "a number that is not finite" if self.scale else "the float64 reference is all zero"
            return Measured(np.inf, 0.0, note)
        return Measured(gap / self.scale, self.scale)


class StoredReference:
    """The reference read from a file of `posexport.parity.sample.writer`: ``header``, and ``tensors`` by name."""

    def __init__(self, header: Header, tensors: Mapping[str, Array]) -> None:
        self._header, self._tensors = header, tensors

    @property
    def tolerances(self) -> dict[tuple[int, str], float]:
        """The tolerances of the proof at conversion, by length and output."""
        return {key: limit for key, (_, limit) in self._of_lengths().items() if limit is not None}

    def start(self, points: Sequence[GridPoint], skipped: Mapping[GridPoint, str]) -> None:
        """Nothing is computed."""

    def case(self, point: GridPoint) -> Case:
        """Inputs and stored float64 outputs of a point."""
        header, tensors, number = self._header, self._tensors, self._header.points.index(point)
        feeds = {spec.name: tensors[f"{number}.in.{spec.name}"].astype(spec.dtype) for spec in header.inputs}
        truths = []
        for spec, known in zip(header.outputs, header.truths[number], strict=True):
            rows, columns, values = (
                tensors[f"{number}.out.{spec.name}.{suffix}"] for suffix in ("rows", "columns", "values")
            )
            truths.append(Stored(spec, known.scale, rows, columns, values))
        return Case(feeds, truths)

    def largest(self, values: Sequence[Value], progress: Progress) -> PerLength:
        """As it was stored; not a number where PyTorch overflowed."""
        del values, progress
        return {key: float("nan") if worst is None else worst for key, (worst, _) in self._of_lengths().items()}

    def changed(self) -> bool:
        return False

    def renew(self) -> None:
        """Does nothing: there is no state."""

    def _of_lengths(self) -> dict[tuple[int, str], tuple[float | None, float | None]]:
        """PyTorch's largest error and the tolerance."""
        header = self._header
        return {
            (point.length, spec.name): (known.worst_baseline_error, known.tolerance)
            for point, truths in zip(header.points, header.truths, strict=True)
            for spec, known in zip(header.outputs, truths, strict=True)
        }
