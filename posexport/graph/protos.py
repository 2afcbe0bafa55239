"""Nodes in the bodies of nodes, of graphs as protobuf holds them: for what runs where onnx-ir is not installed."""

from collections.abc import Iterable, Iterator
from typing import Any


def bodies(node: Any) -> Iterator[Any]:
    """The graphs (onnx.GraphProto) in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes, each before those in its bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body.node)
