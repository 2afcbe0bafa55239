"""Which operators of a graph may compute in 16 bits: by ONNX for any runtime, by the kernel table for a provider."""

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from posexport.graph.types import allowed_types, schema_of
from posexport.targets.dtypes import FLOAT32
from posexport.targets.target import Target


@dataclass
class Kernels:
    """What is asked of a target. ``opset``: of the graph."""

    target: Target
    opset: int
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def has_half(self, node: ir.Node) -> bool:
        """False where the provider computes ``node`` in float32 only, or ONNX does not allow 16 bits."""
        key = (node.domain, node.op_type)
        if key not in self._known:
            self._known[key] = self._has_half(*key)
        return self._known[key]

    def _has_half(self, domain: str, op_type: str) -> bool:
        if not self._accepts(domain, op_type):
            return False
        if not self.multiplies and op_type not in _MOVED:
            return False
        lacks = self.target.needs_kernel(op_type, domain)
        return lacks is None or replace(self.target, dtype=FLOAT32).needs_kernel(op_type, domain) is not None

    def _accepts(self, domain: str, op_type: str) -> bool:
        """Whether the first operand may have 16 bits; True for what ONNX does not know."""
        schema = schema_of(op_type, domain, self.opset)
        if schema is None or not schema.inputs:
            return True
        formals = [*schema.inputs, *schema.outputs][: 1 if op_type not in _CONDITIONED else None]
        return any(f"tensor({self.target.dtype.ort})" in allowed_types(schema, formal) for formal in formals)

    @property
    def multiplies(self) -> bool:
        """Whether matrices are multiplied in 16 bits: else all is computed in float32, of what is stored in 16 bits."""
        return self.target.needs_kernel("MatMul") is None


#: the first operand of these is a condition or a shape
_CONDITIONED = ("Where", "ConstantOfShape", "OneHot")
#: what a provider that computes in float32 still holds in 16 bits: caches, and tables before their rows are gathered
_MOVED = frozenset(
    (
        "Gather",
        "Concat",
        "Slice",
        "Reshape",
        "Transpose",
        "Unsqueeze",
        "Identity",
        "TensorScatter",
        "GroupQueryAttention",
    )
)
