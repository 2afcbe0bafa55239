"""Nodes that a provider has no kernel for, and what ONNX Runtime does with them, by the tables of its kernels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from posexport.base.targets import kernels

#: cast: computed in float32, with casts around; function: replaced by the nodes of the operator's definition; cpu:
#: computed by the CPU provider, with copies; refused: the file does not load
Fate = Literal["cast", "function", "cpu", "refused"]
CPU = "CPUExecutionProvider"
#: domains that the tables have
_DOMAINS = ("", "com.microsoft")
_FLOATS = ("float", "float16", "bfloat16", "double")
#: operators that never reach a kernel
_FOLDED = frozenset(["Constant"])
#: operator, version of it -> the first ONNX Runtime that has that version; older ones compute the version before
_LATER = {("Attention", 25): "1.32"}


@dataclass(frozen=True)
class Missing:
    """A node without a kernel.

    Attributes:
        fate: see `Fate`.
        dtype: the element type that no kernel has; empty: no kernel in any type.
        elsewhere: ONNX Runtime's name of a provider that has a kernel for the operator.
    """

    node: ir.Node
    fate: Fate
    dtype: str = ""
    elsewhere: str | None = None


def missing_kernels(nodes: Sequence[ir.Node], opsets: dict[str, int], provider: str) -> Iterator[Missing]:
    """All nodes without a kernel of ``provider``, by ONNX Runtime's name; nothing for a provider without a table."""
    if not kernels.has_table(provider):
        return
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain in _DOMAINS and node.op_type not in _FOLDED:
            lacking = _lacking(node, provider, domain, opsets.get(domain, 1))
            if lacking is not None:
                yield _with_fate(node, provider, domain, opsets.get(domain, 1), lacking)


def runtime(provider: str) -> str:
    """What has the kernels that `missing_kernels` knows, with its version: ONNX Runtime or the provider's plug-in."""
    version = kernels.table_of(provider)
    return kernels.load_table(version).providers[provider].plugin or f"ONNX Runtime {version}"


def _lacking(node: ir.Node, provider: str, domain: str, opset: int) -> str | None:
    """The type that no kernel has, "" if there is no kernel at all; None if there is one for the node."""
    rows = kernels.rows(provider, node.op_type, domain, _before_it_changed(node.op_type, opset, provider))
    if not rows:
        return ""
    # rows have the types of the first input, or of the output where that input has no elements to compute with
    types = [_type(value) for value in (*node.inputs[:1], *node.outputs[:1])]
    known = {name for row in rows for name in row.dtypes}
    if None in types or not types or not known:
        return None
    # the condition of Where has a type that says nothing
    return None if known.intersection(types) else next((name for name in types if name in _FLOATS), types[0])


def _with_fate(node: ir.Node, provider: str, domain: str, opset: int, lacking: str) -> Missing:
    """What ONNX Runtime does with a node without a kernel: it tries the CPU, the definition, and float32 on the CPU."""
    opset = _before_it_changed(node.op_type, opset, provider)
    on_cpu = kernels.rows(CPU, node.op_type, domain, opset)
    lacking_on_cpu = lacking if provider == CPU else _lacking(node, CPU, domain, opset)
    others = [name for name in kernels.load_table(kernels.table_of(provider)).providers if name != provider]
    elsewhere = next((name for name in others if kernels.rows(name, node.op_type, domain, opset)), None)
    fate: Fate = "refused"
    # the nodes of a definition have no bfloat16 kernels on the CPU either
    if lacking_on_cpu is None:
        fate = "cpu"
    elif kernels.is_function(node.op_type, domain, opset) and (provider, lacking) != (CPU, "bfloat16"):
        fate = "function"
    elif lacking_on_cpu == "float16" and any("float" in row.dtypes for row in on_cpu):
        fate = "cast" if provider == CPU else "cpu"
    return Missing(node, fate, lacking, elsewhere)


def _before_it_changed(operator: str, opset: int, provider: str) -> int:
    """``opset``, or the one before a version of the operator that the table's ONNX Runtime has not heard of."""
    table = kernels.as_numbers(kernels.load_table(kernels.table_of(provider)).onnxruntime)
    for (name, version), first in _LATER.items():
        if name == operator and opset >= version and table < kernels.as_numbers(first):
            return version - 1
    return opset


def _type(value: ir.Value | None) -> str | None:
    """A type by its name in kernel tables; None where it is unknown, or no tensor's."""
    if value is None or value.dtype is None or (value.type is not None and not isinstance(value.type, ir.TensorType)):
        return None
    return value.dtype.name.lower()
