"""The largest magnitudes that a float16 graph computes, and the check that none is beyond 65504. Imports no torch.

They come from sessions of emulated copies (`posexport.graph.precision.emulate`), which have them as additional outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from posexport.proof.agreement.on_grid import few
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import draw
from posexport.proof.proof import Outcome, Proof, Subject
from posexport.proof.report.points import LARGEST, LayerRange, Overflow
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError, in_calls
from posexport.run.providers import bundle_session
from posexport.run.wrapped_session import WrappedSession

if TYPE_CHECKING:
    from posexport.graph.precision.emulate.watch import Site, Vector

#: what rounds to infinity
_BEYOND = 65520.0
#: the score of a dropped key, half of the least finite number (docs/half-precision.md), and the operators that make or
#: carry it where not all readers are known to lead to a softmax: they say nothing of how near activations come
MASK = -LARGEST / 2
_MASKS = frozenset({"Add", "Cast", "CastLike", "Where"})


@dataclass
class _Seen:
    """One place over all calls. ``overflow``: the largest that was beyond float16, infinite where no number says it."""

    site: "Site"
    part: str
    largest: float = 0.0
    overflow: float | None = None


@dataclass
class RangeLog:
    """Opens sessions that answer as plain ones would, and remembers what they compute."""

    threads: int = 0
    _seen: list[_Seen] = field(default_factory=list)

    def session(self, model: Path | bytes) -> Any:
        """A session of an emulated copy, or of one of the files of a model of parts, on the CPU."""
        import onnx
        import onnx_ir as ir

        from posexport.graph.precision.emulate.watch import watch

        loaded = ir.from_proto(onnx.ModelProto.FromString(model)) if isinstance(model, bytes) else ir.load(model)
        sites, vectors = watch(loaded)
        seen = [_Seen(site, "" if isinstance(model, bytes) else model.name) for site in sites]
        self._seen += seen
        proto = ir.to_proto(loaded).SerializeToString()
        weights = None if isinstance(model, bytes) else model.parent
        # each value is let go after its extremes: at the end of the graph all of them would be in memory
        session = bundle_session(proto, threads=self.threads, spinning=False, weights=weights, as_ready=True)
        return _Session(session, vectors, seen)

    @property
    def largest(self) -> float | None:
        """Over all places; None before the first call."""
        return max((seen.largest for seen in self._seen), default=None)

    def places(self) -> list[LayerRange]:
        """The largest of each node, in the order of the graph."""
        return [
            LayerRange(layer=self._layer(seen), largest=seen.largest, node=seen.site.node, op_type=seen.site.op_type)
            for seen in self._seen
        ]

    def layers(self) -> list[LayerRange]:
        """The largest of each layer, in the order of the graph; none of a layer that computes nothing but zeros."""
        most: dict[str, LayerRange] = {}
        for place in self.places():
            before = most.get(place.layer)
            if place.largest > (0.0 if before is None else before.largest):
                most[place.layer] = place
        return list(most.values())

    def overflows(self) -> list[Overflow]:
        """The places at which numbers went beyond float16, in the order of the graph."""
        return [
            Overflow(
                layer=self._layer(seen),
                node=seen.site.node,
                op_type=seen.site.op_type,
                value=seen.overflow if np.isfinite(seen.overflow) else None,
            )
            for seen in self._seen
            if seen.overflow is not None
        ]

    def _layer(self, seen: _Seen) -> str:
        several = len({seen_range.part for seen_range in self._seen}) > 1
        return ": ".join(text for text in (seen.part if several else "", seen.site.layer) if text)


class _Session(WrappedSession):
    """A session that adds the extremes of each site, its further outputs, to ``seen``."""

    def __init__(self, session: Any, vectors: "Sequence[Vector]", seen: Sequence[_Seen]) -> None:
        super().__init__(session)
        self._vectors, self._seen = list(vectors), seen
        self._further = [vector.name for vector in vectors]

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], options: Any = None) -> Any:
        """The outputs called ``names``; inputs beyond the range, as NaN in unused slots, do not count."""
        if not all(map(_within, feeds.values())):
            return self._session.run(names, feeds, options)
        outputs = self._session.run([*names, *self._further], feeds, options)
        self._note(outputs[len(names) :])
        return outputs[: len(names)]

    def __getattr__(self, name: str) -> Any:
        # bound values stay where they are: greedy steps are not watched
        return getattr(self._session, name)

    def get_outputs(self) -> list[Any]:
        return [value for value in super().get_outputs() if value.name not in self._further]

    def _note(self, vectors: Sequence[Array]) -> None:
        least, most = np.zeros((2, len(self._seen)))
        for vector, values in zip(self._vectors, vectors, strict=True):
            turns = values.reshape(-1, 2, len(vector.sites)).astype(np.float64)
            # of no elements the largest is -inf and the smallest inf
            turns[np.broadcast_to((turns[:, :1] < turns[:, 1:]), turns.shape)] = 0
            if len(turns):
                most[list(vector.sites)], least[list(vector.sites)] = turns[:, 0].max(0), turns[:, 1].min(0)
        for number, value in _magnitudes(self._seen, least, most):
            seen = self._seen[number]
            if abs(value) < np.inf:
                seen.largest = max(seen.largest, value)
            if not value < _BEYOND:
                seen.overflow = max(seen.overflow or 0.0, np.inf if np.isnan(value) else value)


def _magnitudes(seen: Sequence[_Seen], least: Array, most: Array) -> Iterator[tuple[int, float]]:
    """The magnitude at each site in one call; infinite or NaN only where it came to be.

    Negative numbers that are added to scores of a softmax count where they are neither masks nor beyond the range.
    """
    beyond = ~((most < _BEYOND) & (least > -_BEYOND))
    for number, seen_range in enumerate(seen):
        high, low = float(most[number]), float(least[number])
        if low < 0 and (seen_range.site.masked or (-_BEYOND < low <= MASK and seen_range.site.op_type in _MASKS)):
            low = 0.0
        value = np.nan if np.isnan(high) or np.isnan(low) else max(abs(high), abs(low))
        if not np.isfinite(value) and (seen_range.site.infinite or beyond[list(seen_range.site.before)].any()):
            value = 0.0
        yield number, float(value)


def _within(array: Any) -> bool:
    array = np.asarray(array)
    return array.dtype.kind != "f" or array.size == 0 or bool(np.abs(array).max() <= LARGEST)


@dataclass(frozen=True)
class Range:
    """The check of the extremes in ``log``.

    ``copy``: opens what runs some points first, where the subject of the proof does not fill ``log``.
    """

    log: RangeLog
    copy: Callable[[], AbstractContextManager[Subject]] | None = None

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with the largest magnitudes by layer and all overflows."""
        if self.copy is not None:
            with self.copy() as subject:
                for point in few([p for p in proof.points if p not in outcome.skipped]):
                    # if it fails, the subject of the proof fails too and reports it
                    with suppress(RunError):
                        in_calls(subject, draw(point, proof.model.inputs), proof.model, point.calls)
        return msgspec.structs.replace(report, range=self.log.layers(), overflows=self.log.overflows())
