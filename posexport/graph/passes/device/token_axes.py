"""Finds the axis of tokens in a function's queries and keys, by its `NodeSpec`, not by names.

Heads are split or packed. There are as many keys as key positions only without a KV cache: with a dynamic cache the
input is new keys only, and a static cache has unused slots.
"""

from collections.abc import Mapping

import onnx_ir as ir

from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import OPERATORS, WHOLE
from posexport.graph.ops.spec import NodeSpec


def token_axes(function: ir.Function, specs: Mapping[str, NodeSpec]) -> dict[str, int]:
    """The axis of tokens in the inputs ``q`` (as in ``qpos``) and ``k`` (as in ``kpos``), where known.

    ``specs``: the specs of functions by name; position operators always have split heads.
    """
    operator = OPERATORS.get(function.name) or OPERATORS.get(function.name.removeprefix(WHOLE))
    if operator is not None:
        return {name: 2 for name in ("q", "k") if name in operator.takes}
    spec = specs.get(function.name)
    if not isinstance(spec, AttentionSpec):
        return {}
    axis = 1 if spec.packed else 2
    return {"q": axis, "k": axis} if spec.cache == "none" else {"q": axis}
