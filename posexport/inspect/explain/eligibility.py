"""Which nodes of a bundle's graphs a provider has kernels for, by the kernel table alone. Imports no torch.

For a provider that does not load on this machine. Fusions of ONNX Runtime are not known; fused operators have kernels
in the types of the nodes that they replace. Sizes and positions of a few integers are computed
on the host whatever there are kernels for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import onnx_ir as ir

from posexport.base.targets import kernels
from posexport.base.targets.dtypes import DTYPES
from posexport.base.targets.providers import Provider, provider_named
from posexport.errors import PosexportError
from posexport.graph.types import infer_types
from posexport.run.bundle.manifest import MODEL
from posexport.run.bundle.read import check_hashes, locate, read

#: element types of conditions, indices and shapes, as ONNX Runtime calls them: a kernel is chosen by another one
_INDICES = ("bool", "int32", "int64")
_ORT_NAMES = {dtype.onnx: dtype.ort for dtype in DTYPES}
#: input of the attention bias, by operator
_ATTENTION = {"MultiHeadAttention": 5, "GroupQueryAttention": 10, "Attention": 3}


class NodeKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One node: the element type by which its kernel is chosen, whether there is one, and why."""

    file: str
    node: str
    op_type: str
    domain: str
    dtype: str
    kernel: bool
    reason: str


class Eligibility(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of a bundle. ``why``: why nothing was run; ``onnxruntime``: the version of the kernel table."""

    bundle: str
    provider: str
    onnxruntime: str
    why: str
    nodes: list[NodeKernel]

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def lines(self) -> Iterator[str]:
        """For a terminal: nodes with the same operator, type and reason in one line, those without kernels first."""
        yield f"{self.bundle}, by the kernel table of onnxruntime {self.onnxruntime}: nothing was run, as {self.why}"
        counts = Counter((node.kernel, node.op_type, node.dtype, node.reason) for node in self.nodes)
        for (kernel, op_type, dtype, reason), count in sorted(counts.items(), key=lambda entry: entry[0]):
            where = self.provider if kernel else "NO KERNEL"
            yield f"{where:10} {count:4} {op_type} ({dtype}): {reason}"
        without = sum(not node.kernel for node in self.nodes)
        yield f"{len(self.nodes) - without} of {len(self.nodes)} nodes have kernels on {self.provider}"


def eligibility(directory: Path, provider: str, why: str) -> Eligibility:
    """The kernel table's entry for every node, functions and branches included.

    Raises PosexportError for an altered bundle or none, and for an unknown provider.
    """
    manifest, record = read(directory), provider_named(provider)
    if record.types:
        raise PosexportError(f"{why}; of {record.label} there is no kernel table, so nothing is said without it")
    check_hashes(directory, manifest)
    nodes = [
        node
        for file in [part.file for part in manifest.parts] or [MODEL]
        for node in _nodes(file, locate(directory, file), record)
    ]
    return Eligibility(
        bundle=str(directory),
        provider=provider,
        onnxruntime=kernels.table_of(record.ort_name),
        why=why,
        nodes=nodes,
    )


def _nodes(file: str, path: Path, provider: Provider) -> Iterator[NodeKernel]:
    import onnx
    import onnx.inliner

    inlined = onnx.inliner.inline_local_functions(onnx.load(str(path), load_external_data=False))
    model = ir.serde.deserialize_model(inlined)
    infer_types(model.graph, model.opset_imports)
    for node in model.graph.all_nodes():
        if node.op_type == "Constant":
            continue
        chosen_by = _types(value.dtype for value in (*node.inputs, *node.outputs) if value is not None)
        opset = model.opset_imports.get(node.domain, 1)
        available, reason = _kernel(node, provider, opset, chosen_by)
        yield NodeKernel(
            file=file,
            node=node.name or next((value.name for value in node.outputs if value.name), ""),
            op_type=node.op_type,
            domain=node.domain,
            dtype=chosen_by[0] if chosen_by else "unknown",
            kernel=available,
            reason=reason,
        )


def _types(dtypes: "Iterable[ir.DataType | None]") -> list[str]:
    """ONNX Runtime's names of the types that may choose the kernel: the first that is no index's, else all."""
    names = [_ORT_NAMES.get(dtype.name, dtype.name.lower()) for dtype in dtypes if dtype]
    data = [name for name in names if name not in _INDICES]
    return data[:1] or list(dict.fromkeys(names))


def _kernel(node: ir.Node, provider: Provider, opset: int, dtypes: list[str]) -> tuple[bool, str]:
    """Whether there is a kernel, and why."""
    rows = kernels.rows(provider.ort_name, node.op_type, node.domain, opset)
    fitting = [dtype for dtype in dtypes if any(dtype in row.dtypes for row in rows)]
    if not rows and kernels.is_function(node.op_type, node.domain, opset):
        return True, "by its ONNX function, operator by operator"
    if not rows:
        return False, f"{provider.label} has no kernel for it at opset {opset}; it runs on the CPU"
    if dtypes and not fitting:
        known = sorted({dtype for row in rows for dtype in row.dtypes})
        return False, f"{provider.label} has kernels for {', '.join(known)} only; it runs on the CPU"
    return True, _of_attention(node) or "a kernel of this type"


def _of_attention(node: ir.Node) -> str | None:
    """The kernels that can compute an attention node; None for other nodes."""
    place = _ATTENTION.get(node.op_type)
    if place is None:
        return None
    biased = len(node.inputs) > place and node.inputs[place] is not None
    if node.op_type == "GroupQueryAttention":
        return "unfused: it has an attention bias" if biased else "fused: no attention bias"
    return (
        "no flash attention: it has an attention bias; memory-efficient or cuDNN attention where the length allows"
        if biased
        else "flash, memory-efficient or cuDNN attention"
    )
