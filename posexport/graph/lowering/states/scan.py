"""A recurrence by a Scan over the tokens, of standard operators."""

import onnx_ir as ir

from posexport.base.targets.target import Target
from posexport.graph.builder import Builder
from posexport.graph.lowering.lowering import Inputs, Lowering, Outputs
from posexport.graph.ops.states import RecurrenceSpec


class TokenScan(Lowering[RecurrenceSpec]):
    """The recurrence as a Scan, one iteration for each token."""

    name = "scan"
    why_not_preferred = "an iteration of a Scan costs more than a token of the operator"

    def refusal(self, spec: RecurrenceSpec, target: Target) -> str | None:
        """Not for runtimes without Scan."""
        return "runtimes without functions have no Scan" if target.flat else None

    def build(self, g: Builder, spec: RecurrenceSpec, x: Inputs, target: Target) -> Outputs:
        heads = {name: g.Reshape(x[name], g.attribute("split_heads", list)) for name in ("q", "k", "v", "decay")}
        scaled = g.Mul(heads["q"], g.CastLike(g.attribute("scale", float), x["q"]))
        # a token's query [B, H, 1, K], key and decay [B, H, K or 1, 1], value [B, H, 1, V], beta [B, H, 1, 1]
        scanned = {
            "query": g.Unsqueeze(scaled, [3]),
            "key": g.Unsqueeze(heads["k"], [4]),
            "value": g.Unsqueeze(heads["v"], [3]),
            "factor": g.Unsqueeze(g.Exp(heads["decay"]), [4]),
        }
        if "beta" in x:
            scanned["beta"] = g.Unsqueeze(x["beta"], [3, 4])

        def token(
            state: ir.Value, query: ir.Value, key: ir.Value, value: ir.Value, factor: ir.Value, *beta: ir.Value
        ) -> tuple[ir.Value, ir.Value]:
            state = g.Mul(state, factor)
            if beta:
                known = g.MatMul(g.Transpose(key, perm=[0, 1, 3, 2]), state)
                value = g.Mul(g.Sub(value, known), beta[0])
            state = g.Add(state, g.Mul(key, value))
            return state, g.MatMul(query, state)

        present, out = g.scan_state(
            token, x["past"], scanned, axis=1, body_name="token", names=("present_state", "outputs")
        )
        return g.Reshape(out, [0, 0, -1]), present
