"""Inputs that a float32 graph is run on before it is quantized, and what its linear projections read there."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.partial import Part
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
    channels = {each.x: each.weight.sizes[0] for each in main}
    computed = [value for value in channels if not value.is_graph_input()]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "observed.onnx"
        run = None
        if computed:
            ir.save(Part(model, computed).model, path, external_data="observed.onnx.data")
            run = calibration.open(path)
        names = [str(value.name) for value in computed]
        for feeds in calibration.feeds:
            arrays = dict(feeds) if run is None else {**feeds, **dict(zip(names, run(names, feeds), strict=True))}
            yield {value: np.asarray(arrays[str(value.name)]).reshape(-1, k) for value, k in channels.items()}
