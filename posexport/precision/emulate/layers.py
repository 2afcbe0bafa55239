"""Which layer a node belongs to, by the modules that it was traced in, or else by its name."""

import ast
import re

import onnx_ir as ir

_SCOPES = "pkg.torch.onnx.name_scopes"
#: a path up to its first number: ``encoder.layer.3`` of ``encoder.layer.3.attention``
_NUMBERED = re.compile(r"^(.*?[./]\d+)(?:[./]|$)")
#: the same in a node's name, which other tools make of the path: ``/encoder/layer.3/attention/MatMul``
_IN_NAME = re.compile(r"((?:[A-Za-z_]+[./])*[A-Za-z_]+[./]\d+)(?=[./])")

#: so many nodes a graph pass may have put behind one that says where it is from
_FAR = 30


def layer_of(node: ir.Node | None) -> str:
    """The layer; that of what the node reads first where it does not say, and empty where nothing does."""
    for _ in range(_FAR):
        if node is None:
            return ""
        if path := _path(node):
            numbered = _NUMBERED.match(path)
            return numbered.group(1) if numbered else path
        if found := _IN_NAME.search((node.name or "").lstrip("/")):
            return found.group(1)
        node = next((value.producer() for value in node.inputs if value is not None and value.producer()), None)
    return ""


def _path(node: ir.Node) -> str:
    """The innermost module."""
    try:
        paths = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    except (ValueError, SyntaxError):
        return ""
    named = [str(path) for path in paths[:-1] if path] if isinstance(paths, list) else []
    return named[-1] if named else ""
