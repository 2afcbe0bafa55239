"""``--first-output``: the order of outputs in the file and in the manifest, and what is refused."""

from pathlib import Path

import onnx
import onnxruntime
import pytest

import posexport
from posexport.errors import PosexportError
from tests.small import shared


def test_the_named_output_is_the_first_of_the_file(tmp_path: Path) -> None:
    """Proven as it is written, in int8 too; others keep their order."""
    settings = dict(pair.split("=", 1) for pair in shared("encoder-rope"))
    for precision in ("fp32", "int8"):
        directory = tmp_path / precision
        done = posexport.convert(
            "encoder-rope",
            directory,
            settings=settings,
            outputs=["hidden_states:0", "hidden_states:1"],
            first_output="hidden_states.1",
            precision=precision,
            lengths=[5, 9],
            remark=lambda _: None,
        )
        assert done.good
        names = [value.name for value in onnx.load(directory / "model.onnx", load_external_data=False).graph.output]
        assert names == ["hidden_states.1", "last_hidden_state", "hidden_states.0"]
        session = posexport.load(directory)
        assert [spec.name for spec in session.outputs] == names
        plain = onnxruntime.InferenceSession(directory / "model.onnx", providers=["CPUExecutionProvider"])
        assert [value.name for value in plain.get_outputs()] == names
        assert session.manifest.recipe.first_output == "hidden_states.1"
        assert session.self_check()


@pytest.mark.parametrize(
    ("source", "name", "sentence"),
    [
        ("encoder-rope", "pooled", "--first-output pooled: encoder-rope has no such output; name last_hidden_state"),
        ("encoder-decoder-t5", "logits", "--first-output is for models of one graph, encoder-decoder-t5 is"),
    ],
)
def test_an_output_that_is_none_is_refused(source: str, name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=sentence):
        posexport.convert(source, tmp_path / "bundle", first_output=name)
    assert not (tmp_path / "bundle").exists()
