"""What static scales are measured on, and the ranges of what linear projections read there."""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.edits import integers
from posexport.precision.derived import Array
from posexport.precision.linear import Projection
from posexport.precision.rows.insert import Insert

#: runs a graph on its inputs by name; answers the outputs that are named
Run = Callable[[Sequence[str], Mapping[str, Array]], Sequence[Any]]


@dataclass(frozen=True)
class Calibration:
    """Texts as a model's inputs.

    Attributes:
        feeds: of one text each, so that no padding is measured.
        open: a session for the graph in a file.
    """

    feeds: Sequence[Mapping[str, Array]]
    open: Callable[[Path], Run]


@dataclass(frozen=True)
class ChannelRange:
    """The lowest and the highest value of each channel, [K], over all tokens of all texts."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @property
    def magnitude(self) -> NDArray[np.float32]:
        return np.maximum(np.abs(self.low), np.abs(self.high))


def measure(model: ir.Model, chosen: Iterable[Projection], calibration: Calibration) -> dict[ir.Value, ChannelRange]:
    """The ranges of what projections of the main graph read, in float32; what bodies and functions read has none.

    Plain extremes: percentiles (99.99, 99.999) and the least squared error came out worse on MiniLM, whose outliers
    matter.
    """
    main = [each for each in chosen if each.container is model.graph and each.x.graph is model.graph]
    sizes = {each.x: each.weight.sizes[0] for each in main}
    names = {value: (f"calibration_low_{at}", f"calibration_high_{at}") for at, value in enumerate(sizes)}
    before = len(model.graph.outputs)
    added = [node for value, channels in sizes.items() for node in _observe(model.graph, value, channels, names[value])]
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "observed.onnx"
            ir.save(model, path, external_data="observed.onnx.data")
            extremes = _run(calibration.open(path), [name for pair in names.values() for name in pair], calibration)
    finally:
        del model.graph.outputs[before:]
        model.graph.remove(added, safe=True)
    return {value: ChannelRange(extremes[low], extremes[high]) for value, (low, high) in names.items()}


def _observe(graph: ir.Graph, value: ir.Value, channels: int, names: tuple[str, str]) -> list[ir.Node]:
    """Outputs of the graph: the extremes of each channel of ``value``; readers first."""
    add = Insert(graph, (), f"{value.name}_observed", after=value.producer())
    shape, tokens = integers(graph, [-1, channels]), integers(graph, [0])
    matrix = add("Reshape", [value, shape], "matrix", ir.DataType.FLOAT)
    nodes = [matrix.producer()]
    for operator, name in zip(("ReduceMin", "ReduceMax"), names, strict=True):
        size = ir.Shape([channels])
        extreme = add(operator, [matrix, tokens], operator, ir.DataType.FLOAT, {"keepdims": 0}, shape=size)
        extreme.name = name
        graph.outputs.append(extreme)
        nodes.append(extreme.producer())
    return [each for each in reversed(nodes) if each is not None]


def _run(run: Run, names: Sequence[str], calibration: Calibration) -> dict[str, NDArray[np.float32]]:
    """The extremes over all texts, by the outputs' names."""
    extremes: dict[str, NDArray[np.float32]] = {}
    for feeds in calibration.feeds:
        for name, value in zip(names, run(names, feeds), strict=True):
            reduce = np.minimum if "_low_" in name else np.maximum
            extremes[name] = reduce(extremes[name], value) if name in extremes else np.asarray(value)
    return extremes
