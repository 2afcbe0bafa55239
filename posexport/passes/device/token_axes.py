"""Which axis of a function's queries and keys counts tokens: what it declares, never what their names suggest.

Heads are split or packed. Keys are as many as their positions only where no KV cache is behind them: what goes into
one is new tokens alone, and a static one has unused slots.
"""

from collections.abc import Mapping

import onnx_ir as ir

from posexport.ops.attention import AttentionSpec
from posexport.ops.operator import OPERATORS, WHOLE
from posexport.ops.spec import NodeSpec


def token_axes(function: ir.Function, specs: Mapping[str, NodeSpec]) -> dict[str, int]:
    """Of the inputs ``q`` (as many tokens as ``qpos``) and ``k`` (as many as ``kpos``), where they are known.

    ``specs``: the records of functions, by their names; position operators always have split heads.
    """
    operator = OPERATORS.get(function.name) or OPERATORS.get(function.name.removeprefix(WHOLE))
    if operator is not None:
        return {name: 2 for name in ("q", "k") if name in operator.takes}
    spec = specs.get(function.name)
    if not isinstance(spec, AttentionSpec):
        return {}
    axis = 1 if spec.packed else 2
    return {"q": axis, "k": axis} if spec.cache == "none" else {"q": axis}
