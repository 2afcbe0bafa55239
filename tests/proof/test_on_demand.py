"""Sessions of which one at a time is in memory give what sessions that stay open give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from posexport.base.spec import PartSpec
from posexport.proof.subjects.on_demand import OnDemand, one_at_a_time
from posexport.run.chain import open_chain


def graph(folder: Path, file: str, x: str, y: str, factor: int) -> PartSpec:
    """A graph that multiplies ``x`` of the model by a factor; its weights are beside it."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[n] x) => (float[n] y) <float[1] w = {{{factor}}}> {{y = Mul (x, w)}}"""
    model = onnx.parser.parse_model(text)
    onnx.save(model, folder / file, save_as_external_data=True, size_threshold=0, location=f"{file}.data")
    return PartSpec(file=file, inputs=[], outputs=[], input_names={"x": x}, output_names={"y": y})


@pytest.mark.parametrize("large", [0, 1 << 40])
def test_one_session_is_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr("posexport.proof.subjects.on_demand.LARGE", large)
    parts = [graph(tmp_path, "a.onnx", "x", "states", 2), graph(tmp_path, "b.onnx", "states", "y", 3)]
    opened: list[str] = []
    group: list[OnDemand] = []

    def make(path: Path | bytes) -> Any:
        assert isinstance(path, Path)
        opened.append(path.name)
        return InferenceSession(path)

    chain = open_chain(tmp_path, parts, one_at_a_time(tmp_path, parts, make, group, prepacking=True))
    assert chain.types == {"x": "tensor(float)"}
    x = np.arange(3, dtype=np.float32)
    for _ in range(2):
        y, states = chain.run(["y", "states"], {"x": x})
        assert np.array_equal(y, 6 * x)
        assert np.array_equal(states, 2 * x)
        assert np.array_equal(chain.run(["y"], {"states": x})[0], 3 * x)  # the second again
    sessions = [link.session for link in chain.links]
    if large:
        assert opened == ["a.onnx", "b.onnx"]
        return
    assert opened == ["a.onnx", "b.onnx"] * 3
    assert sessions == group
    assert [session._open is not None for session in group] == [False, True]
    group[1].close()
    assert [session._open for session in group] == [None, None]
    assert np.array_equal(chain.run(["y"], {"states": x})[0], 3 * x)


@pytest.mark.parametrize(
    "described", [lambda s: s.get_inputs(), lambda s: s.get_modelmeta(), lambda s: s.get_outputs()]
)
def test_what_describes_a_closed_session_does_not_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr("posexport.proof.subjects.on_demand.LARGE", 0)
    parts = [graph(tmp_path, "a.onnx", "x", "states", 2), graph(tmp_path, "b.onnx", "states", "y", 3)]
    make = one_at_a_time(tmp_path, parts, InferenceSession, [], prepacking=True)
    first, last = (link.session for link in open_chain(tmp_path, parts, make).links)
    described(first)
    assert isinstance(last, OnDemand)
    assert last._open is not None


def test_a_single_file_is_opened_as_it_is_where_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posexport.proof.subjects.on_demand.LARGE", 1)
    parts = [graph(tmp_path, "a.onnx", "x", "y", 2)]
    assert one_at_a_time(tmp_path, parts, InferenceSession, [], prepacking=True) is InferenceSession
    assert one_at_a_time(b"", [], InferenceSession, [], prepacking=False) is InferenceSession
    group: list[OnDemand] = []
    session = one_at_a_time(tmp_path / "a.onnx", [], InferenceSession, group, prepacking=False)(tmp_path / "a.onnx")
    assert group == [session]
    monkeypatch.setattr("posexport.proof.subjects.on_demand.LARGE", 1 << 20)
    assert one_at_a_time(tmp_path / "a.onnx", [], InferenceSession, [], prepacking=False) is InferenceSession
