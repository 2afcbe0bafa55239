"""The length guard: refuses beyond the limit at every optimisation level, changes nothing within it."""

from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from posexport.base.bounds import Bound
from posexport.base.spec import ENCODER_SEQUENCE, SEQUENCE
from posexport.conversion.export.build import _lowered
from posexport.conversion.export.layout import BUNDLE
from posexport.conversion.export.save import save
from posexport.graph.lowering import functions
from posexport.graph.passes.guard import table_guard
from posexport.graph.passes.guard.size_guard import insert
from posexport.run.providers import LEVELS, make_session
from posexport.run.wrapped_session import refusal
from posexport.sources.builtin import builtin_source
from tests.small import recipe, source
from tests.traces import Traces

LIMIT = 23
LEAST = 3


@pytest.fixture(scope="module", params=["absolute", "relative-key", pytest.param("learned", marks=pytest.mark.all)])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[True, False], ids=["optimised", "as-traced"])
def paths(
    request: pytest.FixtureRequest, encoding: str, tmp_path_factory: pytest.TempPathFactory, traces: Traces
) -> dict[str, Path]:
    """The guarded model and the same without a guard."""
    folder = tmp_path_factory.mktemp(encoding)
    found = {}
    for name in ("guarded", "bare"):
        made = source(encoding)
        model = traces(made, 18, optimize=request.param)
        if name == "guarded":
            insert(model, made.inputs, [Bound(SEQUENCE, LIMIT), Bound(SEQUENCE, LEAST, "minimum")])
        functions.attach(model)
        found[name] = folder / f"{name}.onnx"
        save(model, found[name])
    return found


def feed(batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    return {
        "input_ids": rng.integers(1, 61, (batch, length)),
        "attention_mask": np.ones((batch, length), np.int64),
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


@pytest.mark.parametrize("level", LEVELS)
def test_beyond_the_limit_is_refused_by_name(paths: dict[str, Path], level: str) -> None:
    session = make_session(paths["guarded"], level=level)
    for batch in (1, 3):
        for length in (LIMIT + 1, 2 * LIMIT):
            with pytest.raises(Exception, match=f"input longer than {LIMIT} positions"):
                session.run(None, feed(batch, length))


@pytest.mark.parametrize("level", LEVELS)
def test_too_short_is_refused_by_name(paths: dict[str, Path], level: str) -> None:
    session = make_session(paths["guarded"], level=level)
    with pytest.raises(Exception, match=f"input shorter than {LEAST} positions"):
        session.run(None, feed(2, LEAST - 1))
    session.run(None, feed(2, LEAST))


@pytest.mark.parametrize("level", LEVELS)
def test_within_the_limit_nothing_changes(paths: dict[str, Path], level: str) -> None:
    guarded, bare = (make_session(paths[name], level=level) for name in ("guarded", "bare"))
    for batch, length in ((1, LEAST), (3, 17), (2, LIMIT)):
        want = bare.run(None, feed(batch, length))[0]
        np.testing.assert_array_equal(guarded.run(None, feed(batch, length))[0], want)


def test_every_consumer_reads_the_guarded_value(paths: dict[str, Path]) -> None:
    model = ir.load(paths["guarded"])
    for value in model.graph.inputs:
        for node, _ in value.uses():
            assert "guard" in (node.name or "") or "er than" in (node.name or ""), f"{node.name} reads past the guard"


@pytest.mark.all
def test_an_encoder_input_has_a_guard_of_its_own(tmp_path: Path, traces: Traces) -> None:
    made = source("relative-key", "cross_attention=true")
    assert made.limits.limited_axes == [SEQUENCE, ENCODER_SEQUENCE]
    model = traces(made, 18)
    insert(model, made.inputs, [Bound(axis, LIMIT) for axis in made.limits.limited_axes])
    functions.attach(model)
    save(model, tmp_path / "m.onnx")
    session = make_session(tmp_path / "m.onnx")

    def cross(memory: int) -> dict[str, np.ndarray]:
        states = np.ones((2, memory, 20), np.float32)
        return {
            **feed(2, 5),
            "encoder_hidden_states": states,
            "encoder_attention_mask": np.ones((2, memory), np.int64),
        }

    assert session.run(None, cross(LIMIT))[0].shape == (2, 5, 20)
    with pytest.raises(Exception, match=f"encoder input longer than {LIMIT} positions"):
        session.run(None, cross(LIMIT + 1))


#: positions that are given, or counted where -1 stands for that, and the rows of a table for them
LOOKUP = """
<ir_version: 8, opset_import: ["": 18]>
g (int64[B, T] position_ids) => (float[B, T, 2] rows)
<float[9, 2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17},
 int64[1] zero = {0}, int64[1] three = {3}>
{
    none = Less(position_ids, zero)
    at = Where(none, three, position_ids)
    looked_up = Gather(table, at)
    rows = Neg(looked_up)
}
"""


def looked_up(text: str = LOOKUP) -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(text))
    for node in model.graph:
        output = node.outputs[0]
        integer = {"Less": ir.DataType.BOOL, "Where": ir.DataType.INT64}.get(node.op_type, ir.DataType.FLOAT)
        output.type = ir.TensorType(integer)
        output.shape = ir.Shape(["B", "T", 2] if integer == ir.DataType.FLOAT else ["B", "T"])
    return model


def test_on_a_device_rows_of_positions_beyond_the_table_are_nan() -> None:
    """Nothing else is, and the CPU refuses what the table has no row for by the guard's name."""
    model = looked_up()
    assert table_guard.insert(model.graph, model.graph.inputs[0], 5, "position_ids beyond 4")
    session = make_session(ir.to_proto(model).SerializeToString())
    assert not {node.op_type for node in model.graph} & {"ReduceMax", "Reshape"}
    (rows,) = session.run(None, {"position_ids": np.array([[0, 4, 5], [-1, 8, 2]])})
    expected = -np.array([[[0, 1], [8, 9], [np.nan] * 2], [[6, 7], [np.nan] * 2, [4, 5]]])
    np.testing.assert_array_equal(rows, expected)
    with pytest.raises(Exception, match="position_ids beyond 4") as caught:
        session.run(None, {"position_ids": np.array([[9]])})
    assert refusal(caught.value) == "position_ids beyond 4"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("looked_up = Gather(table, at)", "looked_up = Gather<axis = 1>(table, at)"),
        ("Gather(table, at)", "Gather(table, zero)"),
        ("int64[B, T] position_ids", "int64[3, B, T] position_ids"),
    ],
)
def test_positions_that_are_read_otherwise_keep_the_guard_of_sizes(old: str, new: str) -> None:
    model = looked_up(LOOKUP.replace(old, new))
    before = list(model.graph)
    assert not table_guard.insert(model.graph, model.graph.inputs[0], 5, "position_ids beyond 4")
    assert list(model.graph) == before


def test_a_decoder_for_a_device_refuses_positions_beyond_its_table_on_the_cpu() -> None:
    decoder = builtin_source(
        "decoder-learned", task=None, settings_given=("layers=1", "hidden=20", "heads=5", "vocab=61")
    )
    guarded = {}
    for target in ("cpu", "cuda"):
        lowered = _lowered(decoder, recipe(target=target, opset=23), None, BUNDLE)
        guarded[target] = {node.name: node.op_type for node in lowered.model.graph if "beyond" in (node.name or "")}
    size = next(spec.size for spec in decoder.inputs if spec.role == "positions")
    text = f"position_ids beyond {size - 1}"
    assert guarded["cpu"][text] == "Reshape"
    assert guarded["cuda"][text] == "Gather"
