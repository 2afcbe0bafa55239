"""Attention with a bias for a device: queries, keys and bias are filled up to a multiple, which nobody sees."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from posexport.base.targets.target import Target
from posexport.graph.lowering.lowering import function
from posexport.graph.lowering.plan import ATTENTION, choose
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import DOMAIN
from posexport.run.providers import make_session
from tests.tolerances import agree

TARGET = Target("cuda", 23)
B, H, D, LOWEST, SCALE = 3, 4, 8, -1e30, 0.4
#: what adds to the scores: a mask over keys, over pairs, causal order, both, and what a bias for many layers is
SPECS = {
    "keys": AttentionSpec(mask="keys"),
    "pairs": AttentionSpec(mask="pairs"),
    "causal": AttentionSpec(causal=True),
    "both": AttentionSpec(mask="keys", causal=True),
    "bias": AttentionSpec(mask="keys", bias="full"),
    "grouped": AttentionSpec(mask="keys", causal=True, grouped=True),
    "packed": AttentionSpec(mask="keys", packed=True),
    "packed, grouped": AttentionSpec(mask="keys", packed=True, grouped=True),
}


def drawn(spec: AttentionSpec, queries: int, keys: int) -> dict[str, NDArray[Any]]:
    """The inputs; every query sees a key."""
    rng = np.random.default_rng(queries * keys)
    heads = {"q": H, "k": 2 if spec.grouped else H, "v": 2 if spec.grouped else H}
    fed = {n: rng.standard_normal((B, h, queries if n == "q" else keys, D)).astype("f") for n, h in heads.items()}
    if spec.packed:
        fed = {n: x.swapaxes(1, 2).reshape(B, x.shape[2], -1) for n, x in fed.items()}
    first = keys - queries
    dropped = rng.random((B, 1, queries if spec.mask == "pairs" else 1, keys)) < 0.3
    dropped[..., 0] = False
    made = {
        "mask": np.where(dropped, LOWEST, 0).astype("f"),
        "bias": rng.standard_normal((1, H, queries, keys)).astype("f"),
        "qpos": np.arange(first, keys),
        "kpos": np.arange(keys),
    }
    return fed | {name: made[name] for name in spec.inputs if name in made}


def model(spec: AttentionSpec, fed: dict[str, NDArray[Any]]) -> onnx.ModelProto:
    body = ir.serde.serialize_function(function(choose(ATTENTION, spec, TARGET).lowering, spec, TARGET).function)
    kv = 2 if spec.grouped else H
    known = {"scale": SCALE, "lowest": LOWEST, "heads": H, "kv_heads": kv}
    known |= {"split_heads": [0, 0, H, -1], "split_kv_heads": [0, 0, kv, -1]}
    node = helper.make_node(
        spec.name, spec.inputs, ["context"], domain=DOMAIN, **{name: known[name] for name in body.attribute}
    )
    ends = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{name}{axis}" for axis in range(x.ndim)]
        )
        for name, x in fed.items()
    ]
    graph = helper.make_graph([node], "g", ends, [helper.make_tensor_value_info("context", TensorProto.FLOAT, None)])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[body], ir_version=10)


def wanted(spec: AttentionSpec, fed: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The formula, all pairs at once."""
    q, k, v = (fed[name].astype(np.float64) for name in "qkv")
    if spec.packed:
        q, k, v = (x.reshape(B, x.shape[1], -1, D).swapaxes(1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, H // x.shape[1], axis=1) for x in (k, v))
    scores = SCALE * q @ k.swapaxes(2, 3)
    if spec.bias != "none":
        scores = scores + fed["bias"]
    elif spec.mask != "none":
        scores = scores + fed["mask"]
    if spec.causal:
        scores[..., fed["kpos"] > fed["qpos"][:, None]] = LOWEST
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    context = shares / shares.sum(-1, keepdims=True) @ v
    return context.swapaxes(1, 2).reshape(B, q.shape[2], -1) if spec.packed else context


@pytest.mark.parametrize("name", SPECS)
def test_what_is_filled_in_is_never_seen(name: str) -> None:
    spec = SPECS[name]
    session = None
    for queries, keys in ((1, 1), (1, 33), (7, 16), (16, 16), (16, 19), (17, 17), (5, 32)):
        fed = drawn(spec, queries, keys)
        session = session or make_session(model(spec, fed).SerializeToString(), threads=1)
        agree(session.run(None, fed)[0], wanted(spec, fed), "operator", np.float32)


@pytest.mark.parametrize("name", SPECS)
def test_the_operator_gets_a_multiple(name: str) -> None:
    """Queries too by MultiHeadAttention, which asks for these; the attribute of grouped queries is ONNX's Attention."""
    spec = SPECS[name]
    made = model(spec, drawn(spec, 5, 19))
    made.functions[0].output.append("operator_bias")
    operator = next(n for n in made.functions[0].node if n.op_type in ("MultiHeadAttention", "Attention"))
    bias = operator.input[3 if operator.op_type == "Attention" else 5]
    made.functions[0].node.append(helper.make_node("Identity", [bias], ["operator_bias"]))
    made.graph.node[0].output.append("operator_bias")
    made.graph.output.append(helper.make_tensor_value_info("operator_bias", TensorProto.FLOAT, None))
    got = make_session(made.SerializeToString(), threads=1).run(["operator_bias"], drawn(spec, 5, 19))[0]
    assert operator.op_type == ("Attention" if spec.grouped else "MultiHeadAttention")
    assert got.shape[2:] == ((5, 32) if spec.grouped else (16, 32))
    assert (got[..., 19:] == LOWEST).all()
