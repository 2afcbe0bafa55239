"""Attention that rotates its queries and keys by GroupQueryAttention, in the calls that the operator computes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from posexport.errors import PosexportError
from posexport.graph.protos import all_nodes
from posexport.lowering.plan import ATTENTION, choose
from posexport.ops.attention import AttentionSpec
from posexport.ops.cache import OF_ROTATION, RotatedCalls
from posexport.ops.operator import DOMAIN, functions
from posexport.parity.grid.point import GridPoint
from posexport.runtime.providers import make_session
from posexport.sources.builtin import builtin_source as builtin
from posexport.sources.prepare import with_kv_cache
from posexport.targets.dtypes import DTYPES
from posexport.targets.target import Target
from tests.lowering.test_lowering import Lowered
from tests.traces import Traces

Array = NDArray[Any]
#: heads of 16 channels, which the operator rotates
SIZES = ("layers=2", "hidden=64", "heads=4", "kv_heads=2", "feedforward=24", "vocab=61")
LOWEST = -32752.0
#: the operator alone, after it or before it other branches; rows of other positions in the first prompt
POINTS = [
    (GridPoint(batch=batch, length=sum(calls), padding=padding), calls)
    for batch, padding, calls in (
        (1, "none", (9, 1, 1, 4)),
        (3, "none", (1, 1, 7, 1)),
        (3, "left", (7, 1, 1)),
        (3, "left", (5, 4, 1)),
        (3, "right", (7, 1)),
    )
]


def rotating(path: Path) -> list[onnx.NodeProto]:
    """The nodes of the operator that rotate."""
    model = onnx.load(path)
    nodes = [node for body in (model.graph, *model.functions) for node in all_nodes(body.node)]
    found = [node for node in nodes if node.op_type == "GroupQueryAttention"]
    return [node for node in found if any(each.name == "do_rotary" and each.i for each in node.attribute)]


@pytest.mark.parametrize(("cache", "lowering"), [("static", "group-query"), ("dynamic", "growing")])
def test_calls_that_the_operator_rotates_and_others(cache: Any, lowering: str, tmp_path: Path, traces: Traces) -> None:
    made = with_kv_cache(builtin("decoder-rope", task=None, settings_given=SIZES), cache, "at-write")
    lowered = Lowered(made, 24, traces, steps=True)
    assert lowered.check(tmp_path / "m.onnx", "auto", POINTS) == {lowering}
    (node,) = rotating(tmp_path / "m.onnx")
    # queries, keys and values as their projection gives them, and no bias
    assert not any(node.input[1:3])
    assert len(node.input) == 10
    outside = {each.op_type for each in onnx.load(tmp_path / "m.onnx").graph.node}
    assert not [kind for kind in outside if kind.endswith("Rotation")]


@pytest.mark.all
@pytest.mark.parametrize("settings", [("rotary_dim=8",), ("layout=interleaved",), ("kv_heads=4",)])
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_every_kind_of_rotation(cache: Any, settings: tuple[str, ...], tmp_path: Path, traces: Traces) -> None:
    made = with_kv_cache(builtin("decoder-rope", task=None, settings_given=(*SIZES, *settings)), cache, "at-write")
    Lowered(made, 24, traces).check(tmp_path / "m.onnx", "auto", POINTS)
    assert len(rotating(tmp_path / "m.onnx")) == 1


def test_another_lowering_keeps_the_rotation_apart(tmp_path: Path, traces: Traces) -> None:
    made = with_kv_cache(builtin("decoder-rope", task=None, settings_given=SIZES), "dynamic", "at-write")
    assert Lowered(made, 24, traces).check(tmp_path / "m.onnx", "blockwise", POINTS[:1]) == {"blockwise"}
    assert not rotating(tmp_path / "m.onnx")


ROTATING = AttentionSpec(
    mask="keys", causal=True, grouped=True, cache="append", packed=True, rotation="half", head_size=32
)


@pytest.mark.parametrize(
    ("changed", "dtype", "reason"),
    [
        ({}, "float16", "by cosines in float16"),
        ({"head_size": 24}, "float32", "these have 24"),
        ({"scores": "DistanceScores"}, "float32", "all that positions do to scores"),
        ({"packed": False}, "float32", "packed heads"),
        ({"cache": "grow", "sink": True}, "float32", "a sink has no key"),
    ],
)
def test_what_is_not_rotated_by_the_operator_says_why(changed: dict[str, Any], dtype: str, reason: str) -> None:
    spec = AttentionSpec(**{**vars(ROTATING), **changed})
    way = next(
        each for each in ATTENTION.lowerings if each.name == ("growing" if changed.get("cache") else "group-query")
    )
    target = Target("cpu", 24, dtype=next(each for each in DTYPES if each.name == dtype))
    assert reason in str(way.refusal(spec, target))


def test_the_planner_takes_one_for_each_kind_of_cache() -> None:
    target = Target("cpu", 24)
    assert choose(ATTENTION, ROTATING, target).lowering.name == "group-query"
    growing = AttentionSpec(**{**vars(ROTATING), "cache": "grow"})
    choice = choose(ATTENTION, growing, target)
    assert choice.lowering.name == "growing"
    assert "holds all scores" in choice.rejected["group-query"]
    with pytest.raises(PosexportError, match="on a device one operator computes all calls"):
        choose(ATTENTION, growing, Target("cuda", 24), "growing")


@pytest.fixture(scope="module")
def calls() -> Callable[..., dict[str, Array]]:
    """`RotatedCalls` as a session, of rows of kept keys, the number of new tokens and the capacity of the cache."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("mask", "cos", "sin")]
    inputs.append(helper.make_tensor_value_info("kpos", TensorProto.INT64, [None]))
    inputs.append(helper.make_tensor_value_info("past_k", TensorProto.FLOAT, [None] * 4))
    names = [*OF_ROTATION, "rotates_few"]
    node = helper.make_node("RotatedCalls", [each.name for each in inputs], names, domain=DOMAIN)
    bools, integers = ("alone", "rotates", "used_slots", "rotates_few"), ("token_rows",)
    kinds = [
        TensorProto.BOOL if name in bools else TensorProto.INT64 if name in integers else TensorProto.FLOAT
        for name in names
    ]
    outputs = [helper.make_tensor_value_info(*pair, None) for pair in zip(names, kinds, strict=True)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)],
        functions=[ir.serde.serialize_function(each) for each in functions(RotatedCalls, 23)],
        ir_version=10,
    )
    session = make_session(model.SerializeToString())

    def answer(rows: Sequence[Sequence[int]], new: int, capacity: int) -> dict[str, Array]:
        mask = np.where(np.array(rows, bool), 0, LOWEST).astype(np.float32)[:, None, None]
        angles = np.arange(len(rows) * new * 3, dtype=np.float32).reshape(len(rows), 1, new, 3)
        past = np.zeros((len(rows), 1, capacity, 6), np.float32)
        feeds = {"mask": mask, "cos": angles, "sin": -angles, "kpos": np.arange(mask.shape[-1]), "past_k": past}
        return dict(zip(names, session.run(None, feeds), strict=True))

    return answer


@pytest.mark.parametrize(
    ("rows", "new", "rotates"),
    [
        ([[1, 1, 1]], 3, True),
        ([[1, 1, 1]], 1, True),
        ([[1, 1, 1]] * 2, 1, True),
        ([[0, 1, 1]], 1, False),  # padding
        # of a first prompt the operator gives every row the positions of the first
        ([[1, 1, 1]] * 2, 3, False),
        ([[1]] * 2, 1, False),
        ([[1, 1, 1]] * 2, 2, False),  # which it does not take
        ([[1] * 513], 513, True),
    ],
)
def test_calls_in_which_every_token_has_its_row(
    calls: Callable[..., dict[str, Array]], rows: list[list[int]], new: int, rotates: bool
) -> None:
    found = calls(rows, new, len(rows[0]))
    assert (bool(found["rotates"]), bool(found["rotates_few"])) == (rotates, rotates and new < 513)
    assert bool(found["alone"]) is (new == 1 and all(map(all, rows)))
    assert found["cos_rows"].shape == found["sin_rows"].shape == (max(len(rows) * new, len(rows[0])), 3)
    angles = np.arange(len(rows) * new * 3)
    np.testing.assert_array_equal(found["cos_rows"][found["token_rows"]].ravel(), angles)
    np.testing.assert_array_equal(found["cos_of_tokens"], angles.reshape(len(rows), new, 3))
    np.testing.assert_array_equal(found["sin_rows"], -found["cos_rows"])


@pytest.mark.parametrize(("capacity", "alone"), [(3, True), (6, True), (7, False)])
def test_a_step_reads_the_whole_capacity_where_half_of_it_is_used(
    calls: Callable[..., dict[str, Array]], capacity: int, alone: bool
) -> None:
    found = calls([[1, 1, 1]], 1, capacity)
    assert bool(found["alone"]) is alone
    assert found["used_slots"].tolist() == [True] * 3 + [False] * (capacity - 3)
