"""What linear projections read on example inputs, and SmoothQuant's smoothing of their channels.

SmoothQuant (Xiao et al. 2023, arXiv:2211.10438, section 4): activations are divided by a factor for each channel and
the weights multiplied by it, so that a channel of large values no longer costs the others their precision. The factor
is folded into parameters of the preceding normalisation where nothing else reads that; a post-norm layer's normalised
value is read by the residual sum too, and there the division is a Mul.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.builder import Builder
from posexport.graph.edits import initializer
from posexport.graph.partial import Subgraph
from posexport.graph.precision.derived import Array, DerivedTensors
from posexport.graph.precision.projections import Projection, Weight, tensor_of

#: the start of the names of factors that nodes multiply by, and the end of those of divided parameters
SMOOTHING, DIVIDED = "smoothing_", "_smooth"
#: runs a graph on its inputs by name; returns the named outputs
Run = Callable[[Sequence[str], Mapping[str, Array]], Sequence[Any]]


@dataclass(frozen=True)
class Calibration:
    """Inputs of a graph.

    Attributes:
        feeds: without padding, or with a mask: padded tokens are not measured.
        open: opens a session for the graph in a file.
        mask: the input that is 0 at padding; empty: there is no padding.
    """

    feeds: Sequence[Mapping[str, Array]]
    open: Callable[[Path], Run]
    mask: str = ""

    def real(self, rows_NK: Array, feeds: Mapping[str, Array]) -> Array:
        """The rows of tokens that are no padding, of an activation with a row for each token."""
        mask = np.asarray(feeds[self.mask]).reshape(-1) != 0 if self.mask else np.ones(0, bool)
        return rows_NK[mask] if len(mask) == len(rows_NK) else rows_NK


def observed(
    model: ir.Model, chosen: Sequence[Projection], calibration: Calibration
) -> Iterator[Mapping[ir.Value, NDArray[np.float32]]]:
    """The inputs [tokens, K] of projections of the main graph, for each of ``calibration.feeds``.

    Projections in bodies and functions are left out.
    """
    main = [
        projection for projection in chosen if projection.container is model.graph and projection.x.graph is model.graph
    ]
    channels = {projection.x: projection.weight.sizes[0] for projection in main}
    computed = [value for value in channels if not value.is_graph_input()]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "observed.onnx"
        run = None
        if computed:
            ir.save(Subgraph(model, computed).model, path, external_data="observed.onnx.data")
            run = calibration.open(path)
        names = [str(value.name) for value in computed]
        for feeds in calibration.feeds:
            arrays = dict(feeds) if run is None else {**feeds, **dict(zip(names, run(names, feeds), strict=True))}
            rows = {value: np.asarray(arrays[str(value.name)]).reshape(-1, k) for value, k in channels.items()}
            yield {value: calibration.real(rows_NK, feeds) for value, rows_NK in rows.items()}


#: channels below this share of the largest are smoothed as if they had it: other inputs may have more of them
_LEAST_SHARE = 1e-3
#: normalisations -> positions of their scale and bias among the inputs
_NORMALISATIONS = {
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2,),
}


def smoothing(activations: NDArray[np.float32], weights: NDArray[np.float32], strength: float) -> NDArray[np.float32]:
    """Factors [K] by the largest magnitudes of a channel's activations and weights, equation 4; geometric mean 1."""
    x = np.maximum(activations, _LEAST_SHARE * activations.max() + 1e-30).astype(np.float64)
    w = np.maximum(weights, _LEAST_SHARE * weights.max() + 1e-30).astype(np.float64)
    factor = x**strength / w ** (1 - strength)
    result: NDArray[np.float32] = (factor / np.exp(np.log(factor).mean())).astype(np.float32)
    return result


@dataclass(frozen=True)
class Readers:
    """The projections that share an input.

    Attributes:
        weights: each once.
        exclusive: no other value is multiplied by these weights, and nothing else reads them: they may be changed.
    """

    weights: Sequence[Weight]
    exclusive: bool

    @property
    def largest(self) -> NDArray[np.float32]:
        """The largest magnitude [K] of the weights that each channel is multiplied by."""
        largest: NDArray[np.float32] = np.max(
            [np.abs(projection.array()).max(1) for projection in self.weights], axis=0
        )
        return largest


def readers(chosen: Sequence[Projection], shared: set[ir.Value]) -> Mapping[ir.Value, Readers]:
    """Of every value that is projected; ``shared``: weights that keep their values."""
    weights: dict[ir.Value, dict[ir.Value, Weight]] = defaultdict(dict)
    sources: dict[ir.Value, set[ir.Value]] = defaultdict(set)
    for projection in chosen:
        weights[projection.x][projection.weight.value] = projection.weight
        sources[projection.weight.value].add(projection.x)
    return {
        value: Readers(
            tuple(several.values()), not any(weight in shared or len(sources[weight]) > 1 for weight in several)
        )
        for value, several in weights.items()
    }


class Smoother:
    """Divides the inputs of one model's projections."""

    def __init__(self, tensors: DerivedTensors, chosen: Sequence[Projection]) -> None:
        self._tensors = tensors
        self._products = {projection.product for projection in chosen}
        self._count = 0

    def divided(self, x: ir.Value, factor: NDArray[np.float32]) -> ir.Value:
        """``x`` [..., K] by ``factor`` [K]; what else reads x reads it as before."""
        if self._fold(x, factor):
            return x
        producer = x.producer()
        graph = x.graph if producer is None else producer.graph
        assert isinstance(graph, ir.Graph)
        self._count += 1
        inverse = self._tensors.number(graph, f"{SMOOTHING}{self._count}", 1 / factor)
        g = Builder.behind(graph, x, name=str(x.name), opset=self._tensors.opset)
        return g.Mul(x, inverse, name="smooth", shape=x.shape)

    def _fold(self, x: ir.Value, factor: NDArray[np.float32]) -> bool:
        """Divides the parameters of the preceding normalisation, if only the projections read it; whether it did."""
        node = x.producer()
        if node is None or x.is_graph_output() or any(user not in self._products for user, _ in x.uses()):
            return False
        parameters = [place for place in _parameters(node, x) if tuple(_shape(node.inputs[place])) == factor.shape]
        if not parameters or len(parameters) < len(_parameters(node, x)):
            return False
        for place in parameters:
            old = node.inputs[place]
            tensor = tensor_of(old)
            assert old is not None
            assert tensor is not None
            assert isinstance(node.graph, ir.Graph)
            new = initializer(node.graph, f"{old.name}{DIVIDED}", ir.tensor(tensor.numpy() / factor))
            node.replace_input_with(place, new)
        return True


def _parameters(node: ir.Node, x: ir.Value) -> list[int]:
    """Positions of the parameters that scale ``x`` if all are divided; empty if there are none."""
    if node.op_type == "Mul" and not node.domain:
        return [place for place, value in enumerate(node.inputs) if tensor_of(value) is not None]
    if node.op_type not in _NORMALISATIONS or x is not node.outputs[0]:
        return []
    places = _NORMALISATIONS[node.op_type]
    return [place for place in places if place < len(node.inputs) and node.inputs[place] is not None]


def _shape(value: ir.Value | None) -> Sequence[int]:
    tensor = tensor_of(value)
    return () if tensor is None else [int(size) for size in tensor.shape]  # type: ignore[arg-type]  # constants have sizes
