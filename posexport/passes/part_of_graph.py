"""A part of a model's graph, run alone: what it computes tells passes what it is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Feeds = Mapping[str, NDArray[Any]]


def part(model: ir.Model, inputs: Sequence[ir.Value], values: Sequence[ir.Value]) -> ir.Graph | None:
    """What computes ``values`` from inputs of the graph; None where it depends on attention."""
    graph = ir.convenience.extract(model.graph, list(inputs), list(values))
    return None if any(node.domain for node in graph) else graph


def opened(model: ir.Model, graph: ir.Graph) -> "InferenceSession":
    """A session of ``graph``, a part of the model's, whose failures are the caller's to tell."""
    import onnxruntime as ort

    alone = ir.Model(graph, ir_version=model.ir_version)
    alone.opset_imports.update(model.opset_imports)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(ir.to_proto(alone).SerializeToString(), options, providers=["CPUExecutionProvider"])


def computed(model: ir.Model, graph: ir.Graph, samples: Iterable[Feeds]) -> Iterator[list[NDArray[Any]]]:
    """What ``graph``, a part of the model's, gives for each sample."""
    session = opened(model, graph)
    names = {value.name for value in session.get_inputs()}
    for feeds in samples:
        yield session.run(None, {name: feed for name, feed in feeds.items() if name in names})
