"""Which operators compute in 16 bits: by ONNX for any runtime, by the kernel table for a provider."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from posexport.base.targets.dtypes import BY_PRECISION, FLOAT32
from posexport.base.targets.provider_options import COMPUTES
from posexport.base.targets.providers import targets
from posexport.base.targets.target import PORTABLE, Target
from posexport.errors import PosexportError
from posexport.graph.queries import width
from posexport.graph.types import allowed_types, schema_of


@dataclass
class Kernels:
    """The kernels of a target in 16 bits; ``opset``: of the graph."""

    target: Target
    opset: int
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def has_half(self, node: ir.Node) -> bool:
        """False where the provider computes ``node`` right in float32 only, or ONNX does not allow 16 bits."""
        provider = self.target.provider
        by_pairs = provider is not None and provider.gelu_by_pairs and self.target.dtype == BY_PRECISION["fp16"]
        if by_pairs and _is_odd_gelu(node):
            return False
        key = (node.domain, node.op_type)
        if key not in self._known:
            self._known[key] = self._has_half(*key)
        return self._known[key]

    def _has_half(self, domain: str, op_type: str) -> bool:
        if not self._accepts(domain, op_type):
            return False
        if not self.multiplies and op_type not in _MOVED:
            return False
        return not any(_only_wider(target, op_type, domain) for target in self._judges)

    def _accepts(self, domain: str, op_type: str) -> bool:
        """Whether the first operand may have 16 bits; True for what ONNX does not know."""
        schema = schema_of(op_type, domain, self.opset)
        if schema is None or not schema.inputs:
            return True
        formals = [*schema.inputs, *schema.outputs][: 1 if op_type not in _CONDITIONED else None]
        return any(f"tensor({self.target.dtype.ort})" in allowed_types(schema, formal) for formal in formals)

    @cached_property
    def _judges(self) -> list[Target]:
        """The target; of portable graphs in bfloat16 each provider that computes in it.

        ONNX Runtime casts float16 where a provider has no kernel, and refuses graphs with such nodes in bfloat16.
        """
        if self.target.provider is not None or self.target.dtype != BY_PRECISION["bf16"]:
            return [self.target]
        return [judge for name in targets() if computes(judge := replace(self.target, name=name))]

    @property
    def multiplies(self) -> bool:
        """Whether matrices are multiplied in 16 bits: else values are stored in 16 bits and computed in float32."""
        return self.target.needs_kernel("MatMul") is None


def _is_odd_gelu(node: ir.Node) -> bool:
    """Whether it is GELU's tanh approximation of an odd number of channels."""
    if node.op_type != "Gelu" or node.attributes.get_string("approximate", "none") != "tanh":
        return False
    channels = width(node.outputs[0])
    return channels is not None and channels % 2 == 1


def _only_wider(target: Target, op_type: str, domain: str) -> bool:
    """Whether there is a kernel in float32 and none in the target's type.

    Nodes without a kernel of the provider in any type run on the CPU, which computes float16 by casts, not bfloat16.
    """
    if target.needs_kernel(op_type, domain) is None:
        return False
    if replace(target, dtype=FLOAT32).needs_kernel(op_type, domain) is None:
        return True
    on_cpu = replace(target, name="cpu")
    wider = replace(on_cpu, dtype=FLOAT32).needs_kernel(op_type, domain) is None
    return target.dtype == BY_PRECISION["bf16"] and wider and on_cpu.needs_kernel(op_type, domain) is not None


#: the first operand of these is a condition, a shape or whole numbers
_CONDITIONED = ("Where", "ConstantOfShape", "OneHot", "DequantizeLinear")
#: operators that use 16 bits even if the provider computes in float32: for caches, and tables before their Gather
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


#: a provider with a kernel for any of these computes in a type
_ARITHMETIC = ("MatMul", "Attention", "Max")


def computes(target: Target) -> bool:
    """Whether the target's provider has arithmetic in the target's type, in some operators at least."""
    return not all(target.needs_kernel(operator) for operator in _ARITHMETIC)


def check_arithmetic(target: Target) -> None:
    """PosexportError where the target's provider has none in the target's type."""
    if target.provider is None or computes(target):
        return
    types = [dtype for dtype in BY_PRECISION.values() if dtype != FLOAT32 and computes(replace(target, dtype=dtype))]
    precisions = "".join(f"--precision {dtype.precision} or " for dtype in types)
    of_session = target.provider.choices.get(COMPUTES)
    if of_session is not None and target.dtype.precision in of_session.values.split():
        precisions = f"{COMPUTES}={target.dtype.precision} of its sessions (--provider-option) with a float32 file, or "
    raise PosexportError(
        f"on {target.provider.label} ONNX Runtime has no kernels that compute in {target.dtype.name}, so --target "
        f"{target.name} cannot have --precision {target.dtype.precision}; use {precisions}another --target"
    )


def remarks(target: Target) -> tuple[str, ...]:
    """Remarks for a user who chose half precision for the target."""
    if target.provider is not None:
        if target.needs_kernel("MatMul") is None:
            return ()
        return (
            f"on {target.provider.label} {target.dtype.name} halves the file and brings no speed: ONNX Runtime "
            "multiplies matrices in float32 there",
        )
    unable = [
        provider.label
        for provider in targets().values()
        if not (provider.loads(target.dtype) or computes(replace(target, name=provider.name)))
    ]
    if target.name == PORTABLE and unable:
        return (
            f"{target.dtype.name} does not run on {' and '.join(unable)}: ONNX Runtime has no kernels for it there",
        )
    return ()
