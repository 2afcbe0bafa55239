"""Inputs that a float32 graph is run on before it is quantized, and what its linear projections read there."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.precision.derived import Array
from posexport.precision.linear import Projection

#: runs a graph on its inputs by name; answers the outputs that are named
Run = Callable[[Sequence[str], Mapping[str, Array]], Sequence[Any]]


@dataclass(frozen=True)
class Calibration:
    """Inputs of a graph.

    Attributes:
        feeds: without padding, for padded tokens would be measured too.
        open: a session for the graph in a file.
    """

    feeds: Sequence[Mapping[str, Array]]
    open: Callable[[Path], Run]


def observed(
    model: ir.Model, chosen: Sequence[Projection], calibration: Calibration
) -> Iterator[Mapping[ir.Value, NDArray[np.float32]]]:
    """What projections of the main graph read, [tokens, K], for each of ``calibration.feeds``.

    What those in bodies and functions read is not among it.
    """
    main = [each for each in chosen if each.container is model.graph and each.x.graph is model.graph]
    channels = {str(each.x.name): each.weight.sizes[0] for each in main}
    values = {str(each.x.name): each.x for each in main}
    computed = [name for name, value in values.items() if not value.is_graph_input()]
    before = len(model.graph.outputs)
    model.graph.outputs.extend(values[name] for name in computed if not values[name].is_graph_output())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "observed.onnx"
        try:
            ir.save(model, path, external_data="observed.onnx.data")
        finally:
            while len(model.graph.outputs) > before:
                model.graph.outputs.pop()  # onnx_ir forgets to free what a slice drops
        run = calibration.open(path)
        for feeds in calibration.feeds:
            # no name would mean all outputs
            arrays = dict(zip(computed, run(computed, feeds) if computed else (), strict=True))
            yield {
                value: np.asarray(arrays.get(name, feeds.get(name))).reshape(-1, channels[name])
                for name, value in values.items()
            }
