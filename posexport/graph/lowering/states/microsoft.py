"""A recurrence by ONNX Runtime's LinearAttention."""

from dataclasses import replace

from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.target import MICROSOFT, Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering, Outputs
from posexport.graph.ops.states import RecurrenceSpec


class LinearAttention(Lowering[RecurrenceSpec]):
    """One operator for all tokens of a call."""

    name = "linear-attention"

    def refusal(self, spec: RecurrenceSpec, target: Target) -> str | None:
        """Not for other runtimes than ONNX Runtime, nor on a provider without its float32 kernel."""
        what = "com.microsoft LinearAttention"
        wide = replace(target, dtype=MODEL_DTYPE)  # in half precision too
        return target.needs_microsoft(what) or wide.needs_kernel("LinearAttention", MICROSOFT)

    def build(self, g: Builder, spec: RecurrenceSpec, x: Inputs, target: Target) -> Outputs:
        heads = g.attribute("heads", int)
        return g.several(
            "LinearAttention",
            ["out", "present"],
            *(x[name] for name in spec.inputs),
            domain=MICROSOFT,
            update_rule=spec.rule,
            q_num_heads=heads,
            kv_num_heads=heads,
            scale=g.attribute("scale", float),
        )
