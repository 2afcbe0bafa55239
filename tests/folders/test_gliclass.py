"""Folders of gliclass: its scores, as ci/golden/zero_shot.py stored them with gliclass 0.1.21."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import posexport
from posexport.errors import PosexportError
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "zero_shot"
NAMES = ("gliclass-dot", "gliclass-weighted", "gliclass-mlp")


#: options of the pipeline that are refused
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"threshold": "much"}, "threshold must be a number from 0 to 1, got 'much'"),
    ({"prompt": ["a"]}, "prompt must be a text"),
    ({"candidate_labels": {"topic": ["music"]}}, "labels of labels are not read"),
]


def changed(tmp_path: Path, **keys: Any) -> Path:
    """A copy of a folder with other keys in its configuration."""
    folder = tmp_path / "folder"
    shutil.copytree(GOLDEN / "gliclass-dot", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return folder


def loaded(folder: Path, **options: Any) -> Any:
    return load_source(str(folder), LoadOptions(**options))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"architecture_type": "bi-encoder"},
            "architecture_type = 'bi-encoder'; only uni-encoder is read: it does not",
        ),
        ({"use_lstm": True}, "use_lstm = True"),
        ({"squeeze_layers": True}, "squeeze_layers = True.*answers depend on the batch"),
        ({"encoder_layer_id": 1}, "encoder_layer_id = 1"),
        ({"use_segment_embeddings": True}, "use_segment_embeddings = True"),
        ({"use_calibrator": True}, "use_calibrator = True"),
        ({"multimodal": True}, "multimodal = True"),
        ({"pooling_strategy": "max"}, "pooling_strategy = 'max'; converted are first and avg"),
        ({"class_token_pooling": "max"}, "class_token_pooling = 'max'; converted are first and average"),
        ({"scorer_type": "hopfield"}, "scorer_type = 'hopfield'; converted are simple and weighted-dot and mlp"),
        (
            {"scorer_type": "mlp", "hidden_size": 7},
            "hidden_size = 7; with scorer_type = 'mlp' it must be",
        ),
        ({"scorer_type": "weighted-dot"}, r"model\.scorer\.proj_text\.weight"),
        ({"encoder_config": {"model_type": "eurobert"}}, "model_type = 'eurobert'; the encoders that"),
    ],
)
def test_what_is_not_converted(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        loaded(changed(tmp_path, **keys))


def test_keys_and_tasks(tmp_path: Path) -> None:
    folder = changed(tmp_path, strange=1)
    assert any(remark.endswith("strange is not read") for remark in loaded(folder).remarks)
    with pytest.raises(PosexportError, match="GLiClass is converted for zero-shot-classification, got --task features"):
        loaded(folder, task="features")


def test_custom_code_of_the_encoder_is_not_left_out(tmp_path: Path) -> None:
    encoder = json.loads((GOLDEN / "gliclass-dot" / "config.json").read_text())["encoder_config"]
    folder = changed(tmp_path, encoder_config={**encoder, "auto_map": {"AutoModel": "modeling_other.OtherModel"}})
    with pytest.raises(PosexportError, match=r"names custom code .*modeling_other\.OtherModel"):
        loaded(folder)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_score(name: str) -> None:
    source = loaded(GOLDEN / name)
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(5, 90, (2, 17), generator=generator)
    index_BN, start_B1 = torch.tensor([[1, 4, 6], [2, 3, -1]]), torch.tensor([[9], [7]])
    more = {"text_indices": start_B1} if len(source.inputs) > 3 else {}
    with torch.no_grad():
        (short,) = source.module(
            input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), label_indices=index_BN, **more
        )
        mask_BT = torch.nn.functional.pad(torch.ones_like(ids_BT), (0, 5))
        padded_BT = torch.nn.functional.pad(ids_BT, (0, 5), value=7)
        (padded,) = source.module(input_ids=padded_BT, attention_mask=mask_BT, label_indices=index_BN, **more)
        (moved,) = source.module(
            input_ids=ids_BT.flip(1), attention_mask=torch.ones_like(ids_BT), label_indices=index_BN, **more
        )
    agree(padded.numpy(), short.numpy(), "another library", np.float32)
    assert (moved - short).abs().max() > 0.01, "the order of tokens changes nothing"


@pytest.mark.all
@pytest.mark.parametrize(("name", "target"), [*((name, "portable") for name in NAMES), ("gliclass-dot", "cpu")])
def test_scores_are_the_librarys(tmp_path: Path, name: str, target: Any) -> None:
    done = posexport.convert(str(GOLDEN / name), tmp_path / "bundle", target=target)
    assert done.report is not None
    assert done.report.passed
    pipeline: Any = posexport.pipeline("zero-shot-classification", tmp_path / "bundle")
    stored = json.loads((GOLDEN / name / "expected.json").read_text())
    for case in stored["cases"]:
        answers = pipeline(stored["texts"], candidate_labels=case["labels"], **case["options"])
        alone = [pipeline(text, case["labels"], **case["options"]) for text in stored["texts"]]
        for got, single, expected in zip(answers, alone, case["answers"], strict=True):
            assert [each["label"] for each in got] == [each["label"] for each in expected]
            if expected:
                scores = [[each["score"] for each in answer] for answer in (got, single, expected)]
                agree(scores[0], scores[2], "another library", np.float32)
                agree(scores[1], scores[2], "another library", np.float32)
    with pytest.raises(PosexportError, match="candidate_labels must be a list of texts"):
        pipeline("hi")
    with pytest.raises(PosexportError, match="input 0 must be a text"):
        pipeline([3], candidate_labels=["person"])
    with pytest.raises(PosexportError, match="classification_type"):
        pipeline("hi", candidate_labels=["person"], classification_type="both")
    for options, says in WRONG:
        with pytest.raises(PosexportError, match=says):
            pipeline("hi", **{"candidate_labels": ["person"], **options})
    if "mlp" in name:  # labels are behind the text
        with pytest.raises(PosexportError, match="a text has no label in 6 tokens"):
            pipeline("a long text " * 9, candidate_labels=["person"], max_length=6)
    else:
        # labels that are cut off have vectors of zeros, as in the library
        assert len(pipeline("hi", candidate_labels=["a", "b", "c"], threshold=0.0, max_length=5)) == 3
    if "weighted" in name:  # the text is cut off: the library's scores of labels of several tokens
        cut = pipeline("hi there", ["person", "city", "org"], threshold=0.0, max_length=9)
        expected = np.array([0.24304515, 0.54498571, 0.35858172])
        agree(np.array([each["score"] for each in cut]), expected, "another library", np.float32)


@pytest.mark.all
@pytest.mark.parametrize("fault", ["a marker is not its label's", "the text starts behind its marker"])
def test_a_wrong_graph_is_found(tmp_path: Path, fault: str) -> None:
    source = str(GOLDEN / "gliclass-weighted")
    posexport.convert(source, tmp_path / "bundle", verify=False)
    graph, path = onnx.load(tmp_path / "bundle" / "model.onnx"), tmp_path / "wrong.onnx"
    onnx.save(graph, path)
    assert posexport.verify(path, against=source, lengths=[17]).passed
    # LessOrEqual: markers that are at a token or before it; GreaterOrEqual: tokens from the start of the text on
    before, after = ("LessOrEqual", "Less") if "marker is" in fault else ("GreaterOrEqual", "Greater")
    nodes = [node for node in graph.graph.node if node.op_type == before and _reads_indices(graph, node)]
    assert nodes
    for node in nodes:
        node.op_type = after
    onnx.save(graph, path)
    assert not posexport.verify(path, against=source, lengths=[17]).passed


def _reads_indices(graph: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Whether an operand of a node is an input of indices, at most through one other node."""
    made = {name: other.input for other in graph.graph.node for name in other.output}
    reached = {*node.input, *(name for operand in node.input for name in made.get(operand, ()))}
    return any(name.endswith("_indices") for name in reached)
