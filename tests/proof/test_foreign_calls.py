"""What calls of another tool's graph are fed, and what is said of it: each piece on its own."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from posexport.base.spec import BATCH, ENCODER_SEQUENCE, PAST, SEQUENCE, InputSpec
from posexport.proof.foreign.fit import Foreign, _listed, _neutral
from posexport.proof.foreign.runner import ForeignRunner, conclusion
from posexport.proof.foreign.signature import Call, Declared, positions, unread
from posexport.proof.grid.inputs import draw
from posexport.proof.grid.point import GridPoint
from posexport.proof.report.points import Point
from posexport.sources import builtin


def merged_decoder() -> bytes:
    """As optimum merges the two graphs of a decoder: only without a past it makes keys of the states, and gives them.

    Its logits are the new id, all ids, and the sum of the states.
    """
    past, there = "past_key_values.0.decoder.key", "past_key_values.0.encoder.key"
    branches = [
        helper.make_graph([helper.make_node("Identity", [name], [f"of_{branch}"])], branch, [],
                          [helper.make_tensor_value_info(f"of_{branch}", TensorProto.FLOAT, None)])
        for branch, name in (("then", there), ("else", "own"))
    ]  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ids", "one_three"], ["new"]),
        helper.make_node("Concat", [past, "new"], ["present.0.decoder.key"], axis=2),
        helper.make_node("ReduceSum", ["encoder_hidden_states", "two"], ["sums"]),
        helper.make_node("Unsqueeze", ["sums", "first"], ["own"]),
        helper.make_node("Squeeze", ["use_cache_branch"], ["cached"]),
        helper.make_node("If", ["cached"], ["kept"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Where", ["cached", "nothing", "own"], ["present.0.encoder.key"]),
        helper.make_node("ReduceSum", ["kept", "rest"], ["far"], keepdims=0),
        helper.make_node("ReduceSum", ["present.0.decoder.key", "rest"], ["near"], keepdims=0),
        helper.make_node("Add", ["far", "near"], ["both"]),
        helper.make_node("Unsqueeze", ["both", "first"], ["of_row"]),
        helper.make_node("Add", ["ids", "of_row"], ["logits_BT"]),
        helper.make_node("Unsqueeze", ["logits_BT", "two"], ["logits"]),
    ]
    constants = {"one_three": [1, 3], "two": [2], "first": [1], "rest": [1, 2, 3]}
    weights = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    weights.append(numpy_helper.from_array(np.float32(0), "nothing"))
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "t"]),
              helper.make_tensor_value_info("encoder_hidden_states", TensorProto.FLOAT, ["b", "s", 2]),
              helper.make_tensor_value_info(past, TensorProto.FLOAT, ["b", 1, "p", 1]),
              helper.make_tensor_value_info(there, TensorProto.FLOAT, ["b", 1, "e", 1]),
              helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])]  # fmt: skip
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
               for name in ("logits", "present.0.decoder.key", "present.0.encoder.key")]  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return made


def test_keys_of_the_states_are_made_once_and_fed_to_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = "past_key_values.0.decoder.key"
    inputs = [
        InputSpec(name="input_ids", dtype="int64", axes=[BATCH, SEQUENCE], role="tokens", size=9),
        InputSpec(name="encoder_hidden_states", dtype="float32", axes=[BATCH, ENCODER_SEQUENCE, 2], role="values"),
        InputSpec(name=cache, dtype="float32", axes=[BATCH, 1, PAST, 1], role="cache"),
    ]
    source = SimpleNamespace(inputs=inputs, promises=SimpleNamespace(causal=True, position_offset=0))
    crossed = {"past_key_values.0.encoder.key": "present.0.encoder.key"}
    shapes = {spec.name: tuple(spec.axes) for spec in inputs} | {"past_key_values.0.encoder.key": ("b", 1, "e", 1)}
    declared = {name: Declared(name, "float", shape) for name, shape in shapes.items()}
    declared["use_cache_branch"] = Declared("use_cache_branch", "bool", (1,))
    foreign = Foreign(source=source, declared=declared, outputs=["logits"], crossed=crossed)
    runner = ForeignRunner(foreign, merged_decoder(), threads=1)
    asked: list[list[str]] = []
    run = runner.chain.run
    monkeypatch.setattr(runner.chain, "run", lambda names, *rest: asked.append(names) or run(names, *rest))

    def answer(ids: list[list[int]], past: list[int], states: np.ndarray) -> list[float]:
        keys = np.broadcast_to(np.array(past, np.float32)[None, None, :, None], (2, 1, len(past), 1))
        (y,) = runner({"input_ids": np.array(ids), "encoder_hidden_states": states, cache: keys})
        found: list[float] = y[:, -1, 0].tolist()
        return found

    states = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    assert answer([[3, 1], [2, 5]], [], states) == [1 + 4 + 15, 5 + 7 + 51]
    assert answer([[2], [4]], [7], states) == [2 + 9 + 15, 4 + 11 + 51]
    assert answer([[2, 1], [4, 3]], [7, 6], states) == [1 + 16 + 15, 3 + 20 + 51]
    assert asked == [["logits"], [*crossed.values()], ["logits"], ["logits"]]
    assert answer([[2], [4]], [7], states + 1) == [2 + 9 + 21, 4 + 11 + 57]
    assert asked[4:] == [[*crossed.values()], ["logits"]]


@pytest.mark.parametrize("masked", [False, True])
def test_a_call_is_read_from_what_the_source_takes(masked: bool) -> None:
    source = builtin.builtin_source("decoder-rope", task=None, settings_given=("layers=1", "hidden=20", "heads=5"))
    inputs = [spec for spec in source.inputs if masked or spec.role != "mask"]
    feeds = draw(GridPoint(batch=2, length=9, calls=(6, 3)), source.inputs)
    feeds |= {spec.name: np.zeros((2, 5, 6, 4), np.float32) for spec in inputs if spec.role == "cache"}
    feeds["input_ids"], feeds["attention_mask"] = feeds["input_ids"][:, 6:], np.tile([0, 0, *[1] * 7], (2, 1))
    call = Call.of(feeds, msgspec.structs.replace(source, inputs=inputs))
    assert (call.past, call.overhead) == (6, None)
    assert call.places_T.tolist() == [6, 7, 8]
    assert call.positions_BT.tolist() == ([[4, 5, 6]] * 2 if masked else [[6, 7, 8]] * 2)
    given = np.array([[-1, 0, 50]] * 2)
    port = Declared("position_ids", "int64", ("batch_size", "sequence_length"))
    assert positions(call, given, port).tolist() == [[call.positions_BT[0, 0], 0, 50]] * 2
    assert positions(call, None, port).tolist() == call.positions_BT.tolist()
    assert positions(call, given, Declared("position_ids", "int64", (1, "t"))).tolist() == [[6, 7, 8]]
    assert positions(call, given, Declared("position_ids", "int64", ("t",))).tolist() == [6, 7, 8]


def test_keys_of_states_that_a_first_call_does_not_read_have_their_shape() -> None:
    states = np.ones((3, 7, 20))
    assert unread(Declared("k", "float", ("b", 5, "s", 4)), states).shape == (3, 5, 7, 4)
    assert unread(Declared("k", "float", ("b", "h", "s", "d")), states).shape == (3, 1, 7, 1)
    assert not unread(Declared("k", "float", ("b", 5, "s", 4)), states).any()


def test_what_nobody_feeds_says_nothing() -> None:
    """Nothing is masked, positions are to be counted, all else is 0."""
    sizes = {"batch_size": 2, "sequence_length": 3, "past_sequence_length": 0}
    for role, wanted in {"mask": 1, "positions": -1, "types": 0, "flags": 0, "cache": 0, "values": 0}.items():
        spec = InputSpec(name="x", dtype="int64", axes=["batch_size", "sequence_length", 4], role=role)
        found = _neutral(spec, sizes, torch.float64)
        assert found.shape == (2, 3, 4)
        assert (found == wanted).all()
        assert found.dtype == (torch.float64 if role in ("cache", "values") else torch.int64)


def test_many_names_are_cut() -> None:
    assert _listed(list("abcde")) == "a, b, c, d, e"
    assert _listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_a_rejection_at_the_limit_is_none_beyond_it() -> None:
    def point(length: int, verdict: str, note: str = "") -> Point:
        return Point(
            batch=1, length=length, padding="none", provider="cpu", precision="fp32", output="", error=None,
            baseline_error=None, worst_baseline_error=None, tolerance=None, verdict=verdict, note=note,
        )  # fmt: skip

    right, beyond = point(5, "pass"), point(10, "rejected", "rejected: no")
    assert conclusion([right, beyond], 10, chosen=False) is None
    assert (
        conclusion([right, beyond], 9, chosen=False)
        == "values right at every length up to 9; rejects longer inputs: no"
    )
    assert conclusion([right, beyond, point(7, "fail")], 9, chosen=False) is None
    assert conclusion([beyond], 9, chosen=False) is None
    assert conclusion([right, beyond], None, chosen=False) is None
