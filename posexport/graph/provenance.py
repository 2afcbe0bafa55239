"""Removes from a graph what tools noted in it.

The tracer notes at every node where in which file it was written: absolute paths of sources and of the environment.
Only the path and the classes of a node's modules stay, which `posexport.proof.locate.graph_values` and
`posexport.inspect.explain` read; the metadata of other tools is removed.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any

import onnx_ir as ir

from posexport.graph.queries import NOTES, with_bodies

_OURS = "posexport."


def strip_provenance(model: ir.Model) -> None:
    """Removes metadata and doc strings from all graphs, bodies and functions, except `NOTES` and posexport's."""
    _clean(model)
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for body in with_bodies(graph):
            _clean(body)
            for value in _values(body):
                _clean(value)
            for node in body:
                _clean(node)
                for attribute in node.attributes.values():
                    attribute.doc_string = None
    for function in model.functions.values():
        _clean(function)


def _clean(thing: Any) -> None:
    """Its notes; doc strings are the tracer's too, no function of ours has one."""
    properties: MutableMapping[str, str] = thing.metadata_props
    for key in [key for key in properties if key not in NOTES and not key.startswith(_OURS)]:
        del properties[key]
    if isinstance(thing, ir.serde.TensorProtoTensor):
        # it is written as it was read
        thing.raw.ClearField("doc_string")
        thing.raw.ClearField("metadata_props")
    else:
        thing.doc_string = None


def _values(graph: ir.Graph) -> Iterator[Any]:
    """What has a name: inputs, initialisers with their tensors, what nodes give, tensors in their attributes."""
    yield from graph.inputs
    for value in graph.initializers.values():
        yield value
        if value.const_value is not None:
            yield value.const_value
    for node in graph:
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.as_tensor()
