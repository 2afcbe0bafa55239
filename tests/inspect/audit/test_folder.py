"""Files of the repository: where they are looked for, and what is said of damaged ones."""

import json
import os
import shutil
from pathlib import Path

import msgspec
import onnx
import pytest

import posexport
from posexport.inspect.audit.reading.folder import Folder
from posexport.inspect.audit.registry import RULES
from posexport.run.bundle.manifest import FileEntry
from posexport.run.bundle.read import sha256
from tests import tiny_bundle
from tests.inspect.audit.graphs import saved, subject

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


VISION = """
    <ir_version: 8, opset_import: ["": 18]>
    vision (float[N, 12] pixel_values) => (float[N, 6] image_features, float[3, N, 6] deepstack_features)
    <int64[2] first = {0, 6}, int64[1] end = {6}, int64[1] zero = {0}, int64[1] axis = {1}, int64[3] three = {3, 1, 1}>
    {
        image_features = Slice (pixel_values, zero, end, axis)
        row = Unsqueeze (image_features, zero)
        deepstack_features = Tile (row, three)
    }
"""
DECODER = """
    <ir_version: 8, opset_import: ["": 18]>
    decoder (float[B, T, 6] inputs_embeds, float[3, N, 6] NAME) => (float[B, T, 6] logits, float[3, N, 6] other)
    {
        logits = Abs (inputs_embeds)
        other = Abs (NAME)
    }
"""


@pytest.mark.parametrize(("name", "count"), [("deepstack_features", 0), ("other_features", 1)])
def test_features_of_inner_layers_reach_the_decoder(name: str, count: int, tmp_path: Path) -> None:
    saved(VISION, tmp_path, "vision_encoder.onnx")
    saved(DECODER.replace("NAME", name), tmp_path, "decoder_model_merged.onnx")
    findings = posexport.audit(tmp_path, select=["PX510"])
    assert [finding.nodes for finding in findings] == [("deepstack_features",)] * count


def test_features_of_inner_layers_that_are_not_computed(tmp_path: Path) -> None:
    one = VISION.replace(", float[3, N, 6] deepstack_features", "").replace("deepstack_features =", "deeper =")
    config = '{"vision_config": {"deepstack_visual_indexes": [8, 16, 24], "out_hidden_size": 6}}'
    path = saved(one, tmp_path, "vision_encoder.onnx", {"config.json": config})
    saved(DECODER.replace("NAME", "features"), tmp_path, "decoder_model_merged.onnx")
    (finding,) = posexport.audit(path, select=["PX510"])
    assert "[8, 16, 24]: features of 3 layers go to the decoder too" in finding.message
    (tmp_path / "config.json").write_text(config.replace("6}", "24}"))
    assert not posexport.audit(path, select=["PX510"])


PRODUCT = """
    <ir_version: 8, opset_import: ["": 18]>
    product (float[B, T, 6] x) => (float[B, T, 2] y)
    <float[6, 2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0}>
    { y = MatMul (x, w) }
"""
HALF = """
    <ir_version: 8, opset_import: ["": 18]>
    half (float[B, T, 6] x) => (float[B, T, 2] y)
    <float16[6, 2] w = {15360, 16384, 16896, 17408, 17664, 17920, 18176, 18432, 18560, 18688, 18816, 18944}>
    {
        short = Cast <to = 10> (x)
        product = MatMul (short, w)
        y = Cast <to = 1> (product)
    }
"""


def test_variants_by_provider(tmp_path: Path) -> None:
    saved(PRODUCT, tmp_path / "onnx")
    saved(HALF, tmp_path / "onnx", "model_fp16.onnx")
    (finding,) = posexport.audit(tmp_path, select=["PX511"])
    assert finding.severity == "note"
    assert finding.message == (
        "of 2 variants, cpu computes model.onnx (fp32, 0 MB) as they are; not model_fp16.onnx: float16 is computed by "
        "casts to float32 and back, which is slower"
    )
    assert not posexport.audit(tmp_path, select=["PX511"], provider="cuda")


WINDOWED = """
    <ir_version: 8, opset_import: ["": 18]>
    masked (int64[B, T] input_ids, float[B, 2, T, 4] q, float[B, 2, 4, T] k, float[B, 2, T, 4] v, int64[T, T] gaps)
        => (float[B, 2, T, 4] y)
    <int64 window = {WINDOW}, float none = {-3e38}>
    {
        scores = MatMul (q, k)
        far = GreaterOrEqual (gaps, window)
        kept = Where (far, none, scores)
        probabilities = Softmax (kept)
        y = MatMul (probabilities, v)
    }
"""


@pytest.mark.parametrize(
    ("window", "config", "count"),
    [
        (5, {}, 0),
        (9, {}, 1),
        (4, {"sliding_window": 8}, 0),
        (9, {"use_sliding_window": False}, 0),
        (9, {"max_position_embeddings": 5}, 0),
        (9, {"model_type": "qwen2"}, 0),
        (9, {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}, 1),
        (9, {"layer_types": ["full_attention"]}, 0),
    ],
)
def test_windows(window: int, config: dict[str, object], count: int, tmp_path: Path) -> None:
    whole = {"model_type": "mistral", "sliding_window": 5, "max_position_embeddings": 64, **config}
    text = WINDOWED.replace("WINDOW", str(window))
    path = saved(text, tmp_path, files={"config.json": json.dumps(whole)})
    assert len(posexport.audit(path, select=["PX506"])) == count


SCORES = """
    <ir_version: 8, opset_import: ["": 18]>
    scores (int64[B, T] input_ids, float[B, 3] pooled) => (float[B, 3] logits)
    { logits = Abs (pooled) }
"""


@pytest.mark.parametrize(
    ("labels", "modules", "count"), [(3, "null", 0), (2, "null", 1), (2, '[{"type": "a.Dense"}]', 0)]
)
def test_labels_of_scores(labels: int, modules: str, count: int, tmp_path: Path) -> None:
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {str(i): "" for i in range(labels)}}
    path = saved(SCORES, tmp_path, files={"config.json": json.dumps(config), "modules.json": modules})
    assert len(posexport.audit(path, select=["PX502"])) == count


def test_a_bundle_with_its_manifest_has_clients_that_set_session_options(tmp_path: Path) -> None:
    model = onnx.load(saved(RULES["PX403"].bad, tmp_path / "a"))
    model.metadata_props.add(key="posexport.version", value="1")
    path = tmp_path / "a" / "model.onnx"
    onnx.save(model, path)
    assert [finding.severity for finding in posexport.audit(path)] == ["note"]
    files = {"model.onnx": FileEntry(size=path.stat().st_size, sha256=sha256(path))}
    manifest = msgspec.structs.replace(tiny_bundle.MANIFEST, files=files)
    (tmp_path / "a" / "posexport.json").write_bytes(msgspec.json.encode(manifest))
    assert not list(posexport.audit(path))
    # a copy without the manifest, and one with another graph's
    (tmp_path / "b").mkdir()
    copy = Path(shutil.copy(path, tmp_path / "b"))
    assert [finding.code for finding in posexport.audit(copy)] == ["PX403"]
    path.write_bytes(path.read_bytes().replace(b"weight", b"weighs"))
    assert [finding.code for finding in posexport.audit(path)] == ["PX403"]
