"""The length guard: refuses beyond the limit at every optimisation level, changes nothing within it."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from posexport.bounds import Bound
from posexport.export import functions, guard
from posexport.export.save import save
from posexport.runtime.providers import LEVELS, make_session
from posexport.spec import ENCODER_SEQUENCE, SEQUENCE
from tests.small import source
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
            guard.insert(model, made.inputs, [Bound(SEQUENCE, LIMIT), Bound(SEQUENCE, LEAST, least=True)])
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


def test_an_encoder_input_has_a_guard_of_its_own(tmp_path: Path, traces: Traces) -> None:
    made = source("relative-key", "cross_attention=true")
    assert made.limits.limited_axes == [SEQUENCE, ENCODER_SEQUENCE]
    model = traces(made, 18)
    guard.insert(model, made.inputs, [Bound(axis, LIMIT) for axis in made.limits.limited_axes])
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
