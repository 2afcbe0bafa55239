"""Which operators of a bundle's graphs a proof in emulation computed by a kernel, and which by a definition."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from posexport.spec import DOMAIN
from posexport.targets import kernels
from posexport.targets.providers import CPU

if TYPE_CHECKING:
    import onnx

#: a kernel of ONNX Runtime's for the CPU, in float32
KERNEL = "kernel"
#: the definition that ONNX or ONNX Runtime has of it, in other operators, in float32
FUNCTION = "function"


def computed_by(graphs: Iterable[Path]) -> dict[str, list[str]]:
    """`KERNEL` and `FUNCTION` -> the operators of ``graphs``, in other domains than ONNX's as ``domain::name``.

    Read off the kernel table. The graphs ran, so each operator has a kernel or a definition.
    """
    import onnx

    operators: dict[str, set[str]] = {KERNEL: set(), FUNCTION: set()}
    for path in graphs:
        model = onnx.load(str(path), load_external_data=False)
        opsets = {opset.domain: opset.version for opset in model.opset_import}
        for node in _nodes(model):
            if node.domain != DOMAIN and node.op_type != "Constant":
                known = kernels.rows(CPU.ort_name, node.op_type, node.domain, opsets[node.domain])
                name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
                operators[KERNEL if known else FUNCTION].add(name)
    return {how: sorted(names) for how, names in operators.items() if names}


def _nodes(model: "onnx.ModelProto") -> "Iterator[onnx.NodeProto]":
    left = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while left:
        node = left.pop()
        yield node
        left += [inner for attribute in node.attribute for inner in attribute.g.node]
