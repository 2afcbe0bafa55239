"""Questions to graphs in protobuf, for code that runs where onnx-ir is not installed."""

import ast
from collections.abc import Iterable, Iterator
from typing import Any

#: in a node's metadata: a list of paths of the modules that it was traced in
SCOPES = "pkg.torch.onnx.name_scopes"


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


def module_paths(note: str) -> list[str]:
    """Paths of the modules that a node was traced in, outermost first, by its metadata `SCOPES`; empty without."""
    try:
        paths = ast.literal_eval(note)
    except (ValueError, SyntaxError):
        return []
    return [str(path) for path in paths[:-1] if path] if isinstance(paths, list) else []


def scopes(node: Any) -> list[str]:
    """The `module_paths` of a node (onnx.NodeProto)."""
    return next((module_paths(entry.value) for entry in node.metadata_props if entry.key == SCOPES), [])
