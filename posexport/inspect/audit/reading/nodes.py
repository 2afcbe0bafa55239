"""Checks nodes against their operators' schemas: kinds of attributes, numbers of inputs, bodies."""

import contextlib
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from posexport.errors import PosexportError

if TYPE_CHECKING:
    import onnx

#: how many outputs more a body has than its node: of Loop the condition
_BODIES = {"If": 0, "Loop": 1, "Scan": 0}


def check_nodes(nodes: "Iterable[onnx.NodeProto]", opsets: Mapping[str, int], path: Path) -> None:
    """Raises PosexportError for a node without outputs, with an attribute of another kind, or with too few inputs.

    Operators that the installed onnx does not know (ONNX Runtime's) are not checked.
    """
    for node in nodes:
        if wrong := next((attribute for attribute in node.attribute if not attribute.type), None):
            raise PosexportError(f"{path}: attribute {wrong.name!r} of {node.op_type} has no type; export it again")
        if not node.output:
            raise PosexportError(f"{path}: node {node.name or node.op_type!r} has no outputs; export it again")
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = _schema(node.op_type, opsets.get(domain, 1), domain)
        if schema is None:
            continue
        attributes, least, outputs, most = schema
        where = f"{path}: node {node.name or node.op_type!r} of type {node.op_type}"
        _check_attributes(node, attributes, where)
        if node.op_type == "Constant" and not domain and [a.name in attributes for a in node.attribute] != [True]:
            raise PosexportError(f"{where} must have one value; export it again")
        if len(node.input) < least:
            raise PosexportError(f"{where} has {len(node.input)} inputs, it needs {least}; export it again")
        if not outputs <= len(node.output) <= most:
            raise PosexportError(f"{where} has {len(node.output)} outputs, it has {outputs} to {most}; export it again")
        if not domain and node.op_type in _BODIES:
            _check_bodies(node, where)


def _check_attributes(node: "onnx.NodeProto", expected: Mapping[str, int], where: str) -> None:
    """Raises PosexportError for an attribute of another kind than ``expected``, and for text that is none."""
    import onnx

    kinds = onnx.AttributeProto.AttributeType
    for attribute in node.attribute:
        kind = expected.get(attribute.name)
        if kind is not None and attribute.type != kind:
            raise PosexportError(
                f"{where} has {attribute.name} as {kinds.Name(attribute.type)}, it must be {kinds.Name(kind)}; "
                "export it again"
            )
        if kind == kinds.STRING and attribute.s.decode(errors="ignore").encode() != attribute.s:
            raise PosexportError(
                f"{where} has {attribute.name} = {attribute.s!r:.60}, which is not UTF-8; export it again"
            )


def _check_bodies(node: "onnx.NodeProto", where: str) -> None:
    """Raises PosexportError where a body has not as many inputs and outputs as its node."""
    inputs = len(node.input) if node.op_type != "If" else 0
    scanned = next((attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0)
    if node.op_type == "Scan" and not inputs - len(node.output) <= scanned <= inputs:
        raise PosexportError(f"{where} scans {scanned} of {inputs} inputs; export it again")
    for attribute in node.attribute:
        if not attribute.HasField("g"):
            continue
        body = attribute.g
        if len(body.input) != inputs:
            raise PosexportError(
                f"{where} passes {inputs} inputs on, its {attribute.name} has {len(body.input)}; export it again"
            )
        if len(body.output) != len(node.output) + _BODIES[node.op_type]:
            raise PosexportError(
                f"{where} has {len(node.output)} outputs, its {attribute.name} has {len(body.output)}; export it again"
            )


@functools.cache
def _schema(op_type: str, version: int, domain: str) -> "tuple[Mapping[str, int], int, int, int] | None":
    """Of an operator: the kinds of its attributes, and its least inputs, least and most outputs."""
    import onnx.defs

    schema = None
    for known in (version, onnx.defs.onnx_opset_version()):  # a version of a later onnx, or none
        with contextlib.suppress(onnx.defs.SchemaError, TypeError, ValueError):
            schema = schema or onnx.defs.get_schema(op_type, max_inclusive_version=known, domain=domain)
    if schema is None:
        return None
    # the numbers of AttributeProto.AttributeType and of the schema's are the same
    kinds = {name: int(getattr(attribute.type, "value", 0)) for name, attribute in schema.attributes.items()}
    return kinds, schema.min_input, schema.min_output, schema.max_output
