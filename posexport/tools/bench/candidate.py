"""What is measured: a model and the worker that runs it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posexport.targets.precisions import FP32, PrecisionName
from posexport.tools.bench.processes import FailedError, run


@dataclass(frozen=True, kw_only=True)
class Export:
    """What making a model cost: seconds, and peak memory in bytes. ``remark``: what the exporter said of its source."""

    seconds: float
    peak: int | None
    remark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model and the worker that runs it.

    ``model``: what the worker reads. Candidates of the same ``weights`` must agree, those of a ``precision`` below
    float32 within what it may cost. ``environment`` and ``python``: the name and the interpreter of another
    environment that runs the worker. ``by_posexport``: ``posexport convert`` wrote the graph. ``failed``: why there is
    no model; ``nodes``: of its graph.
    """

    name: str
    model: str
    vocab: int
    weights: str
    worker: str = "posexport.tools.bench.workers.onnx"
    environment: str | None = None
    python: str | None = None
    by_posexport: bool = True
    precision: PrecisionName = FP32.name
    options: dict[str, Any] = field(default_factory=dict)
    export: Export | None = None
    failed: str | None = None
    nodes: int | None = None


def nodes(graph: Path) -> int | None:
    """Of a graph, counted in another process: this one must stay small. None of what is no graph."""
    if graph.suffix != ".onnx" or not graph.is_file():
        return None
    try:
        return int(run("posexport.tools.bench.nodes", [str(graph)]).output)
    except FailedError:
        return None
