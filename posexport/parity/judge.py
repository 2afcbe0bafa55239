"""Measurements and rejections as points of the report: the criterion applied."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from posexport.bounds import bounds_of
from posexport.parity.foreign.runner import Beyond
from posexport.parity.grid.inputs import draw, size_of
from posexport.parity.grid.point import GridPoint
from posexport.parity.report.points import Point
from posexport.parity.run.calls import in_calls
from posexport.parity.run.emulation import HALVES
from posexport.parity.run.points import PerLength, Value
from posexport.parity.run.refusal import refused
from posexport.parity.run.setup import Setup

#: what has the range of float32
_OTHER = {"fp16": " or bf16"}


def judged(setup: Setup, value: Value, baseline: PerLength, tolerances: Mapping[tuple[int, str], float]) -> Point:
    """One output at one point against the tolerance at that length."""
    key = value.point.length, value.output
    error = None if value.measured is None or not np.isfinite(value.measured.error) else value.measured.error
    overflows = setup.precision in HALVES and not np.isfinite(value.baseline) and value.measured is not None
    if overflows and (error is None or error > tolerances[key]):
        # nothing to measure by: a graph that overflows where the definition does is not to blame
        note = f"{value.output}: PyTorch's own {setup.precision} overflows; use fp32{_OTHER.get(setup.precision, '')}"
        return _point(setup, value.point, output=value.output, verdict="skipped", note=note)
    return _point(
        setup,
        value.point,
        output=value.output,
        error=error,
        torch_error=value.baseline if np.isfinite(value.baseline) else None,
        torch_worst=baseline[key],
        tolerance=tolerances[key],
        verdict="pass" if error is not None and error <= tolerances[key] else "fail",
        note=value.measured.note if value.measured is not None and value.measured.note else value.note,
    )


def skipped(setup: Setup, point: GridPoint, reason: str) -> Point:
    """A point for which there was no memory."""
    return _point(setup, point, verdict="skipped", note=reason)


def rejected(setup: Setup, point: GridPoint, *, foreign: bool, fresh: bool, room: int) -> Point:
    """A point outside the limits, which the graph has to reject; one of another tool may answer as the source does."""
    source = setup.source
    run = partial(in_calls, setup.subject, model=source, calls=point.calls)
    axes = {axis for spec in source.inputs for axis in spec.axes}
    bounds = [b for b in bounds_of(source.envelope) if b.axis in axes and b.broken(size_of(b.axis, point))]
    feeds = draw(point, source.inputs)
    if not foreign:
        answer = refused(run, feeds, bounds)
    else:
        beyond = Beyond(
            run=run,
            definition=lambda: [
                partial(in_calls, reference, model=source, calls=point.calls)
                for reference in setup.references(fresh=fresh)
            ],
            outputs=source.outputs,
            precision=setup.precision,
            tolerance=setup.tolerance,
        )
        outside = " or ".join(bound.message for bound in bounds)
        answer = beyond.judge(feeds, outside, fits=setup.needed(point) <= room)
    verdict = "fail" if not answer.good else "pass" if answer.answered else "rejected"
    return _point(setup, point, verdict=verdict, note=answer.note)


def _point(setup: Setup, point: GridPoint, **result: Any) -> Point:
    return Point.at(point, provider=setup.provider, precision=setup.precision, **result)
