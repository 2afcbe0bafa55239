"""Folders of gliner: its logits and its entities, as ci/golden/zero_shot.py stored them with gliner 0.2.29."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer

import posexport
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.nn.lstm import PackedLSTM
from posexport.run.pipelines.answer import lines
from posexport.run.pipelines.zero_shot_token_classification import ZeroShotTokenClassification
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "zero_shot"
NAMES = ("gliner-span", "gliner-token", "gliner-marker")
CONFIG = "gliner_config.json"


def changed(tmp_path: Path, name: str = "gliner-span", **keys: Any) -> Path:
    """A copy of a folder with other keys in its configuration."""
    folder = tmp_path / "folder"
    shutil.copytree(GOLDEN / name, folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **keys}))
    return folder


def loaded(folder: Path, **options: Any) -> Any:
    return load_source(str(folder), LoadOptions(**options))


def batch_of(name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs of the library's batch, which has padding, and its logits."""
    stored, config = load_file(GOLDEN / name / "expected.safetensors"), json.loads((GOLDEN / name / CONFIG).read_text())
    ids_BT, words_BT = stored["input_ids"], stored["words_mask"]
    # a word is where the library's mask has its number, from 1 on; a label is at its marker, or behind it
    count = int(words_BT.max())
    word_BN = torch.full((len(ids_BT), count), -1)
    for row, place in (words_BT > 0).nonzero().tolist():
        word_BN[row, words_BT[row, place] - 1] = place
    behind = int(not config.get("embed_ent_token", True))
    labels = [(ids_T == config["class_token_index"]).nonzero()[:, 0] + behind for ids_T in ids_BT]
    inputs = {
        "input_ids": ids_BT,
        "attention_mask": stored["attention_mask"],
        "word_indices": word_BN,
        "label_indices": torch.stack(labels),
    }
    return inputs, stored["logits"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_librarys(name: str) -> None:
    source = loaded(GOLDEN / name)
    inputs, logits = batch_of(name)
    assert [spec.name for spec in source.inputs] == list(inputs)
    with torch.no_grad():
        (got,) = source.module(**inputs)
        moved = source.module(**{**inputs, "word_indices": inputs["word_indices"].roll(1, 1)})[0]
    words_BW = inputs["word_indices"] >= 0
    agree(got[words_BW].numpy(), logits[words_BW].numpy(), "another library", np.float32)
    assert (moved - got).abs().max() > 0.05, "the words' order changes nothing"


def test_spans_behind_the_text_are_the_librarys_too() -> None:
    inputs, logits = batch_of("gliner-span")
    with torch.no_grad():
        (got,) = loaded(GOLDEN / "gliner-span").module(**inputs)
    assert (inputs["word_indices"] < 0).any(), "the batch has no padding"
    agree(got.numpy(), logits.numpy(), "another library", np.float32)


@pytest.mark.all
@pytest.mark.filterwarnings("ignore::FutureWarning")  # the exporter's
def test_a_packed_lstm_is_the_librarys_in_a_graph_too() -> None:
    import onnxruntime

    torch.manual_seed(0)
    module = PackedLSTM(5, 3, 2).eval()
    x_BTC, count_B = torch.randn(4, 9, 5), torch.tensor([9, 1, 4, 8])
    sizes = ({0: "b", 1: "t"}, {0: "b"})
    exported = torch.onnx.export(module, (x_BTC, count_B), dynamic_shapes=sizes, dynamo=True, verbose=False)
    assert exported is not None
    session = onnxruntime.InferenceSession(exported.model_proto.SerializeToString())
    names = [port.name for port in session.get_inputs()]
    for rows, length in ((4, 9), (2, 4)):
        x, count = x_BTC[:rows, :length], count_B[:rows].clamp(max=length)
        with torch.no_grad():
            expected = module(x, count)
            alone = module(x[1:2, :1], count[1:2])
        (got,) = session.run(None, dict(zip(names, (x.numpy(), count.numpy()), strict=True)))
        agree(got, expected.numpy(), "operator", np.float32)
        agree(expected[1:2, :1].numpy(), alone.numpy(), "operator", np.float32)


def test_words_without_tokens_move_no_others() -> None:
    """A zero-width space is a word of the library, and a tokenizer that cleans texts leaves no token of it."""
    tokenizer = Tokenizer.from_file(str(GOLDEN / "gliner-span" / "tokenizer.json"))
    tokenizer.normalizer = BertNormalizer(lowercase=False)
    row = tokenizer.encode(["<<ENT>>", "city", "<<SEP>>", "in", "\u200b", "org"], is_pretokenized=True)
    pipeline: Any = SimpleNamespace(_by_first=True)
    found = dict(ZeroShotTokenClassification._words_of(pipeline, row, 3))
    assert [(word, row.tokens[place]) for word, place in found.items()] == [(0, "in"), (2, "org")]


# -- what is not converted --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"labels_encoder": "a/b"}, "labels_encoder: it reads labels by an encoder of their own"),
        ({"labels_decoder": "a/b"}, "labels_decoder: it writes labels by a decoder"),
        ({"relations_layer": "dot"}, "relations_layer: it gives relations"),
        ({"decoder_config": {}}, "decoder_config: it reads a text in parts"),
        ({"span_encoder_config": {}}, "span_encoder_config: it has further layers"),
        ({"fuse_layers": True}, "fuse_layers = True.*answers depend on the batch"),
        ({"represent_spans": True}, "represent_spans = True.*its own scores choose"),
        ({"precomputed_prompts_mode": True}, "has no labels before the text"),
        ({"subtoken_pooling": "mean"}, "subtoken_pooling = 'mean'.*first or last"),
        ({"span_mode": "conv_share"}, "span_mode = 'conv_share'; converted are markerV0, marker and token_level"),
        (
            {"encoder_config": {"model_type": "eurobert"}},
            "model_type = 'eurobert'; the encoders that",
        ),
        ({"encoder_config": None}, "has no encoder_config, .* hf download microsoft/deberta-v3-small "),
        ({"encoder_config": 3}, "encoder_config = 3; it must be the configuration of a model"),
        ({"hidden_size": 20}, "the weights do not fit a gliner for zero-shot-token-classification"),
        ({"num_rnn_layers": 2}, r"rnn\.lstm\.weight_ih_l1"),
    ],
)
def test_what_is_not_converted(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        loaded(changed(tmp_path, **keys))


def test_a_missing_tensor_is_named_as_in_the_file(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layer.1.output.dense.bias"))
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(PosexportError, match=name.replace(".", r"\.")):
        loaded(folder)


def test_keys_and_tasks(tmp_path: Path) -> None:
    folder = changed(tmp_path, strange=1, words_splitter_type="spacy", lr_encoder="1e-5")
    remarks = loaded(folder).remarks
    assert any(remark.endswith("strange is not read") for remark in remarks)
    assert any("words_splitter_type = 'spacy'" in remark for remark in remarks)
    with pytest.raises(PosexportError, match="GLiNER is converted for zero-shot-token-classification, got --task feat"):
        loaded(folder, task="features")


def test_the_encoders_configuration_may_lie_beside(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    config = json.loads((folder / CONFIG).read_text())
    encoder = config.pop("encoder_config")
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / "encoder").mkdir()
    # a vocabulary without the library's markers
    (folder / "encoder" / "config.json").write_text(json.dumps({**encoder, "vocab_size": 3}))
    inputs, logits = batch_of("gliner-span")
    with torch.no_grad():
        (got,) = loaded(folder).module(**inputs)
    agree(got.numpy(), logits.numpy(), "another library", np.float32)


def test_a_tokenizer_without_the_markers_gets_them(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = changed(tmp_path, class_token_index=-1)
    content = json.loads((folder / "tokenizer.json").read_text())
    # the library's markers are the last three
    config = json.loads((folder / "tokenizer_config.json").read_text())
    marks = {token["content"]: token["id"] for token in content["added_tokens"][-3:]}
    content["added_tokens"] = content["added_tokens"][:-3]
    (folder / "encoder").mkdir()
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").rename(folder / "encoder" / "tokenizer_config.json")
    (folder / "encoder" / "tokenizer.json").write_text(json.dumps(content))
    assert config
    files = loaded(folder).files
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    assert {mark: tokenizer.token_to_id(mark) for mark in marks} == marks
    assert CONFIG in files


def test_an_entity_is_one_line_of_the_command_line() -> None:
    entity = {"start": 4, "end": 7, "text": "Ada", "label": "person", "score": 0.97}
    assert lines([entity]) == ["    0.9700  Ada  person  [4:7]"]


# -- bundles ----------------------------------------------------------------------------------------


@pytest.mark.all
@pytest.mark.parametrize(("name", "target"), [*((name, "portable") for name in NAMES), ("gliner-span", "cpu")])
def test_entities_are_the_librarys(tmp_path: Path, name: str, target: Any) -> None:
    done = posexport.convert(str(GOLDEN / name), tmp_path / "bundle", target=target)
    assert done.report is not None
    assert done.report.passed
    session = posexport.load(tmp_path / "bundle")
    # other sizes than those that it was traced at, and a batch with padding
    inputs, logits = batch_of(name)
    got = session.run({key: value.numpy() for key, value in inputs.items()})["logits"]
    real_BW = (inputs["word_indices"] >= 0).numpy()
    agree(got[real_BW], logits.numpy()[real_BW], "another library", np.float32)
    pipeline = posexport.pipeline("zero-shot-token-classification", tmp_path / "bundle")
    stored = json.loads((GOLDEN / name / "expected.json").read_text())
    assert sum(len(entities) for case in stored["cases"] for entities in case["answers"]) > 100
    for case in stored["cases"]:
        answers = pipeline(stored["texts"], candidate_labels=case["labels"], **case["options"])
        for entities, expected in zip(answers, case["answers"], strict=True):
            shown = [{key: entity[key] for key in ("start", "end", "text", "label")} for entity in entities]
            assert shown == [{key: entity[key] for key in shown[0]} for entity in expected] if shown else not expected
            if not expected:
                continue
            got, wanted = (np.array([entity["score"] for entity in each]) for each in (entities, expected))
            agree(got, wanted, "another library", np.float32)
    # one text alone, and what cannot be asked
    alone: Any = pipeline
    assert alone(stored["texts"][0], candidate_labels=["person"]) == alone([stored["texts"][0]], ["person"])[0]
    assert alone(stored["texts"], candidate_labels="person, city") == alone(stored["texts"], ["person", "city"])
    wrong: tuple[Any, ...] = (None, [], 3, {"person": 3})
    for labels in wrong:
        with pytest.raises(PosexportError, match="candidate_labels must be a list of texts"):
            pipeline("hi", candidate_labels=labels)
    with pytest.raises(PosexportError, match="input 0 must be a text"):
        pipeline([3], candidate_labels=["person"])
    with pytest.raises(PosexportError, match="threshold must be a number from 0 to 1, got None"):
        pipeline("hi", candidate_labels=["person"], threshold=None)


@pytest.mark.all
def test_indices_are_checked_and_markers_are_needed(tmp_path: Path) -> None:
    posexport.convert(str(GOLDEN / "gliner-span"), tmp_path / "bundle", verify=False)
    session = posexport.load(tmp_path / "bundle")
    ids, good = np.ones((1, 6), np.int64), np.array([[1, 3, -1]])
    session.run({"input_ids": ids, "word_indices": good, "label_indices": good})
    for bad in ([[1, 6, -1]], [[1, -1, 3]], [[-1, -1, -1]], [[1, -2, -1]]):
        with pytest.raises(PosexportError, match="it takes indices of tokens below 6, at least one in each row"):
            session.run({"input_ids": ids, "word_indices": np.array(bad), "label_indices": good})
    with pytest.raises(PosexportError, match="missing input label_indices"):
        session.run({"input_ids": ids, "word_indices": good})
    # what runs a bundle on drawn inputs draws them too
    result = CliRunner().invoke(group, ["explain", str(tmp_path / "bundle")])
    assert result.exit_code == 0, result.output


@pytest.mark.all
@pytest.mark.parametrize("fault", ["a span ends behind the text", "padding is read backwards"])
def test_a_wrong_graph_is_found(tmp_path: Path, fault: str) -> None:
    posexport.convert(str(GOLDEN / "gliner-span"), tmp_path / "bundle", verify=False)
    graph = onnx.load(tmp_path / "bundle" / "model.onnx")
    path = tmp_path / "wrong.onnx"
    onnx.save(graph, path)
    assert posexport.verify(path, against=str(GOLDEN / "gliner-span"), lengths=[17]).passed
    if "ends" in fault:
        nodes = [node for node in graph.graph.node if node.op_type == "Less"]
        assert nodes
        for node in nodes:
            node.op_type = "LessOrEqual"
    else:
        (lstm,) = (node for node in graph.graph.node if node.op_type == "LSTM")
        lstm.input[4] = ""
    onnx.save(graph, path)
    assert not posexport.verify(path, against=str(GOLDEN / "gliner-span"), lengths=[17]).passed
