"""Files of the repository: where they are looked for, and what is said of damaged ones."""

import os
from pathlib import Path

import pytest

import posexport
from posexport.tools.audit.reading.folder import Folder
from posexport.tools.audit.registry import RULES
from tests.tools.audit.graphs import saved, subject

ANY = """
    <ir_version: 8, opset_import: ["": 18]>
    any (float[B, T] x) => (float[B, T] y)
    { y = Abs (x) }
"""


def found(path: Path) -> list[str]:
    return [finding.message for finding in posexport.audit(path, select=["PX501"])]


@pytest.mark.parametrize("content", ['{"vocab_size": 30522, ', "", "[" * 100_000, '{"a": \x00}'], ids=lambda c: c[:3])
def test_damaged_json_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = saved(ANY, tmp_path, files={"config.json": content})
    (message,) = found(path)
    assert message.startswith("config.json cannot be read: ")
    assert "\n" not in message


def test_a_link_that_leaves_the_repository_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"key": 1}')
    path = saved(ANY, tmp_path / "model")
    os.symlink(tmp_path / "secret", path.parent / "config.json")
    (message,) = found(path)
    assert "is a link that leaves" in message
    assert Folder(path).object("config.json") == {}


def test_large_json_is_not_read(tmp_path: Path) -> None:
    path = saved(ANY, tmp_path)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(9 << 20)
    assert found(path) == ["config.json cannot be read: has 9437184 bytes, more than 8388608"]


def test_files_are_those_above_a_folder_named_onnx(tmp_path: Path) -> None:
    path = saved(ANY, tmp_path / "onnx")
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')
    assert Folder(path).object("config.json") == {"vocab_size": 3}
    assert Folder(saved(ANY, tmp_path / "other")).object("config.json") == {}
    (tmp_path / "config.json").write_text("{")
    assert found(tmp_path) == found(path) != []


def test_names_with_parents_are_not_read(tmp_path: Path) -> None:
    path = saved(ANY, tmp_path / "model")
    (tmp_path / "config.json").write_text('{"key": 1}')
    assert Folder(path).json("../config.json") is None


def test_positions_of_one_row_are_right_where_no_image_arrives(tmp_path: Path) -> None:
    rule = RULES["PX505"]
    text = rule.bad.replace(", float[B, T, 6] inputs_embeds, float[I, 6] image_features", "")
    assert not list(rule.check(subject(text, tmp_path, rule.files)))


MEAN = """
    <ir_version: 8, opset_import: ["": 18]>
    mean (float[B, T, 6] states, int64[B, T] attention_mask) => (float[B, 6] sentence_embedding)
    <int64[1] one = {1}>
    { sentence_embedding = ReduceMean <keepdims = 0> (states, one) }
"""
REVERSED = """
    <ir_version: 8, opset_import: ["": 18]>
    last (float[B, T, 6] states, int64[B] lengths) => (float[B, 6] sentence_embedding)
    <int64 zero = {0}>
    {
        ends = ReverseSequence <batch_axis = 0, time_axis = 1> (states, lengths)
        sentence_embedding = Gather <axis = 1> (ends, zero)
    }
"""


@pytest.mark.parametrize(
    ("graph", "mode", "said"),
    [
        (MEAN, "mean", "is the mean of all rows, padding too: ReduceMean does not read attention_mask"),
        (MEAN, "max", "is the mean of the tokens, and modules.json configures max"),
        (REVERSED, "lasttoken", None),
    ],
)
def test_poolings(graph: str, mode: str, said: str | None, tmp_path: Path) -> None:
    rule = RULES["PX507"]
    files = {**rule.files, "1_Pooling/config.json": f'{{"pooling_mode": "{mode}"}}'}
    messages = [place.message for place in rule.check(subject(graph, tmp_path, files))]
    assert bool(messages) == (said is not None)
    assert said is None or said in messages[0]
