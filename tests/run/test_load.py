"""An open bundle gives what the definition gives, and answers bad input with a sentence."""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import posexport
from posexport.base.spec import InputSpec, OutputSpec
from posexport.cli.run import command
from posexport.errors import PosexportError
from posexport.run.arrays import read_arrays, save_arrays, similarities
from posexport.run.feeds import prepare
from posexport.run.session import Session
from posexport.run.wrapped_session import refusal
from tests.tiny_bundle import LIMIT, MANIFEST, TABLE, VOCAB, expected, rewrite, tiny_model, write_bundle
from tests.tolerances import agree

IDS = np.arange(14).reshape(2, 7) % VOCAB
MASK = np.array([[1] * 7, [1] * 4 + [0] * 3])
TYPES = np.array([[0, 0, 0, 1, 1, 1, 1], [0] * 7])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("tiny") / "bundle", texts=True)


@pytest.fixture(scope="module")
def session(bundle) -> Session:
    return posexport.load(bundle, threads=1)


# -- loading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [True, False])
def test_a_bundle_loads_and_runs(tmp_path, external):
    session = posexport.load(write_bundle(tmp_path / "b", external=external))
    assert session.providers == ["CPUExecutionProvider"]
    assert [spec.name for spec in session.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [spec.name for spec in session.outputs] == ["last_hidden_state", "sentence_embedding"]
    assert session.manifest.source.name == "tiny"
    got = session.run({"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES})
    wanted = expected(IDS, MASK, TYPES)
    np.testing.assert_array_equal(got["last_hidden_state"], wanted)
    agree(got["sentence_embedding"], wanted.astype(np.float64).mean(1), "operator", np.float32)


@pytest.mark.parametrize("external", [True, False])
def test_a_bundle_in_a_hugging_face_cache_loads(tmp_path, external):
    bundle = write_bundle(tmp_path / "b", external=external, texts=True)
    snapshot = tmp_path / "entry" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (tmp_path / "entry" / "blobs").mkdir()
    for path in bundle.iterdir():
        path.rename(tmp_path / "entry" / "blobs" / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    assert posexport.load(snapshot).run_texts(["a cat"])["last_hidden_state"].shape == (1, 3, 3)


def test_an_altered_model_is_refused_unless_told_not_to_look(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    data = (bundle / "model.onnx").read_bytes()
    weights = TABLE.tobytes()
    assert data.count(weights) == 1
    (bundle / "model.onnx").write_bytes(data.replace(weights, (TABLE * 2).tobytes()))
    with pytest.raises(PosexportError, match=r"model.onnx has sha256"):
        posexport.load(bundle)
    got = posexport.load(bundle, check=False).run({"input_ids": IDS})["last_hidden_state"]
    np.testing.assert_array_equal(got, 2 * expected(IDS, np.ones_like(IDS), np.zeros_like(IDS)))


def other_input(**changes):
    first = {"name": "input_ids", "dtype": "int64", "axes": ["batch_size", "sequence_length"], "role": "tokens"}
    return [InputSpec(**{**first, **changes}), *MANIFEST.inputs[1:]]


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": other_input(name="ids")},
        {"inputs": other_input(dtype="float32")},
        {"inputs": other_input(axes=["batch_size", 7])},
        {"inputs": other_input(axes=["batch_size", "length"])},
        {"inputs": MANIFEST.inputs[:2]},
        {"outputs": MANIFEST.outputs[:1]},
        {"outputs": [OutputSpec(name="last_hidden_state", axes=["batch_size", 3]), MANIFEST.outputs[1]]},
        {"outputs": MANIFEST.outputs[::-1]},
    ],
)
def test_a_manifest_of_another_model_is_refused(tmp_path, changes):
    bundle = write_bundle(tmp_path / "b", manifest=msgspec.structs.replace(MANIFEST, **changes))
    with pytest.raises(PosexportError, match=f"model.onnx has the {next(iter(changes))} .*, the manifest says .*again"):
        posexport.load(bundle)


def test_a_model_that_is_no_model_is_refused(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    (bundle / "model.onnx").write_bytes(b"garbage")
    with pytest.raises(PosexportError, match=r"model.onnx is not an ONNX model"):
        posexport.load(bundle, check=False)


def test_an_unknown_provider_is_refused(bundle):
    with pytest.raises(PosexportError, match="unknown provider 'tpu'; known: cpu, cuda"):
        posexport.load(bundle, provider="tpu")


def test_the_version_is_the_projects():
    root = Path(posexport.__file__).parent.parent
    if (root / "pyproject.toml").exists():
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        said = project.get("version", posexport.__version__)
    else:
        said = importlib.metadata.version("posexport")
    assert said == posexport.__version__


# -- running arrays --------------------------------------------------------------------------------


def test_defaults_keep_every_token_and_have_type_0(session):
    got = session.run({"input_ids": IDS})["last_hidden_state"]
    np.testing.assert_array_equal(got, expected(IDS, np.ones_like(IDS), np.zeros_like(IDS)))


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint16", "uint64", ">i8"])
def test_integers_of_any_width_are_taken(session, dtype):
    got = session.run({"input_ids": IDS.astype(dtype), "attention_mask": MASK.astype(bool)})["last_hidden_state"]
    np.testing.assert_array_equal(got, expected(IDS, MASK, np.zeros_like(IDS)))


def test_lists_and_strided_arrays_are_taken(session):
    wanted = expected(IDS, np.ones_like(IDS), np.zeros_like(IDS))
    np.testing.assert_array_equal(session.run({"input_ids": IDS.tolist()})["last_hidden_state"], wanted)
    wide = np.repeat(IDS, 2, axis=1)
    np.testing.assert_array_equal(session.run({"input_ids": wide[:, ::2]})["last_hidden_state"], wanted)
    np.testing.assert_array_equal(session.run({"input_ids": np.asfortranarray(IDS)})["last_hidden_state"], wanted)


def test_outputs_can_be_chosen(session):
    got = session.run({"input_ids": IDS}, outputs=["sentence_embedding"])
    assert list(got) == ["sentence_embedding"]
    with pytest.raises(
        PosexportError, match="unknown output pooled; this bundle gives last_hidden_state, sentence_emb"
    ):
        session.run({"input_ids": IDS}, outputs=["pooled"])


def at(array, value, *where):
    array = np.array(array, dtype=np.int64)
    array[where] = value
    return array


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "^missing input input_ids; this bundle takes input_ids, attention_mask, token_type_ids"),
        ({"attention_mask": MASK}, "missing input input_ids"),
        ({"input_ids": None}, "missing input input_ids"),
        ({"input_ids": IDS, "labels": IDS}, "unknown input labels; this bundle takes input_ids"),
        ({"input_ids": IDS.astype(np.float32)}, "input_ids must hold integers, got float32"),
        ({"input_ids": IDS > 0}, "input_ids must hold integers, got bool"),
        ({"input_ids": [["a"]]}, "input_ids must hold integers, got <U1"),
        ({"input_ids": IDS, "attention_mask": MASK.astype(np.float32)}, "attention_mask must hold 0 and 1 as integers"),
        ({"input_ids": [1, 2]}, r"input_ids needs the axes \[batch_size, sequence_length\], got .* shape \[2\]"),
        ({"input_ids": 1}, r"got an array of shape \[\]"),
        ({"input_ids": [[1, 2], [3]]}, "input_ids is not an array: its rows differ in length"),
        ({"input_ids": [[2**70]]}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids has sequence_length 0; give at least 1"),
        ({"input_ids": np.zeros((0, 7), np.int64)}, "input_ids has batch_size 0"),
        ({"input_ids": IDS, "attention_mask": MASK[:, :5]}, "attention_mask has sequence_length 5, input_ids has 7"),
        ({"input_ids": IDS, "attention_mask": MASK[:1]}, "attention_mask has batch_size 1, input_ids has 2"),
        ({"input_ids": IDS, "token_type_ids": TYPES[:, :1]}, "token_type_ids has sequence_length 1, input_ids has 7"),
        ({"input_ids": np.ones((1, LIMIT + 1), int)}, r"sequence_length 12, .* at most 11 \(made with --beyond error"),
        ({"input_ids": at(IDS, -1, 1, 2)}, r"input_ids holds -1 at \[1, 2\]; it takes ids from 0 to 12"),
        ({"input_ids": at(IDS, VOCAB, 0, 6)}, r"input_ids holds 13 at \[0, 6\]; it takes ids from 0 to 12"),
        ({"input_ids": np.array([[2**64 - 1]], np.uint64)}, r"input_ids holds 18446744073709551615 at \[0, 0\]"),
        ({"input_ids": IDS, "token_type_ids": at(TYPES, 2, 0, 0)}, r"token_type_ids holds 2 at \[0, 0\]; .* 0 to 1"),
        (
            {"input_ids": IDS, "attention_mask": at(MASK, 2, 1, 3)},
            r"attention_mask holds 2 at \[1, 3\]; it takes 1 for",
        ),
        ({"input_ids": IDS, "attention_mask": at(MASK, -1, 0, 0)}, "attention_mask holds -1"),
    ],
)
def test_bad_input_is_a_sentence(session, inputs, says):
    with pytest.raises(PosexportError, match=says) as caught:
        session.run(inputs)
    assert "\n" not in str(caught.value)


def test_the_limit_itself_is_taken(session):
    assert session.run({"input_ids": np.ones((1, LIMIT), int)})["last_hidden_state"].shape == (1, LIMIT, 3)


def test_the_guards_refusal_is_a_sentence(tmp_path, capfd):
    """Where the manifest knows no limit, the model itself refuses; ONNX Runtime logs nothing beside the sentence."""
    free = msgspec.structs.replace(MANIFEST.limits, max_length=None)
    bundle = write_bundle(tmp_path / "b", manifest=msgspec.structs.replace(MANIFEST, limits=free))
    with pytest.raises(PosexportError, match=r"refuses input_ids \[1, 12\], .*: input longer than 11 positions$"):
        posexport.load(bundle).run({"input_ids": np.ones((1, 12), int)})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("input longer than 512 positions", "input longer than 512 positions"),
        ("encoder input longer than 64 positions: encoder_attention_mask", "encoder input longer than 64 positions"),
    ],
)
def test_the_guards_words_are_found_in_the_nodes_name(name, says):
    text = f"Non-zero status code returned while running Reshape node. Name:'{name}' Status Message: x"
    assert refusal(RuntimeError(text)) == says


def test_other_failures_are_not_disguised():
    assert refusal(RuntimeError("Non-zero status code. Name:'node_MatMul_3' Status Message: bad")) is None
    assert refusal(RuntimeError("Failed to allocate memory for requested buffer of size 1")) is not None


def test_a_length_below_the_minimum_is_refused(tmp_path):
    long = msgspec.structs.replace(MANIFEST.limits, min_length=4)
    bundle = write_bundle(tmp_path / "b", manifest=msgspec.structs.replace(MANIFEST, limits=long), texts=True)
    session = posexport.load(bundle)
    with pytest.raises(PosexportError, match="sequence_length 3, this bundle needs at least 4"):
        session.run({"input_ids": np.ones((1, 3), int)})
    assert session.tokenize(["a"])["attention_mask"].tolist() == [[1, 1, 0, 0]]


def test_a_minimum_beyond_memory_is_one_sentence(tmp_path):
    long = msgspec.structs.replace(MANIFEST.limits, min_length=2**40)
    bundle = write_bundle(tmp_path / "b", manifest=msgspec.structs.replace(MANIFEST, limits=long), texts=True)
    with pytest.raises(PosexportError, match="1 texts padded to 1099511627776 tokens do not fit in memory"):
        posexport.load(bundle).tokenize(["a"])


STATES = InputSpec(name="states", dtype="float32", axes=["batch_size", "encoder_sequence_length", 5], role="values")


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (np.zeros((2, 4, 6)), r"states needs the axes \[batch_size, encoder_sequence_length, 5\], got .* \[2, 4, 6\]"),
        (np.zeros((3, 4, 5)), "states has batch_size 3, input_ids has 2"),
        (np.full((2, 4, 5), np.nan), r"states holds nan at \[0, 0, 0\]; it takes finite numbers"),
        (np.zeros((2, 4, 5), complex), "states must hold real numbers, got complex128"),
        (None, "missing input states"),
    ],
)
def test_real_inputs_are_checked(states, says):
    with pytest.raises(PosexportError, match=says):
        prepare({"input_ids": IDS, "states": states}, [*MANIFEST.inputs, STATES], MANIFEST.limits)


def test_real_inputs_and_masks_of_another_axis():
    mask = InputSpec(name="m", dtype="int64", axes=["batch_size", "encoder_sequence_length"], role="mask")
    got = prepare({"input_ids": IDS, "states": np.ones((2, 4, 5))}, [*MANIFEST.inputs, STATES, mask], MANIFEST.limits)
    assert got["states"].dtype == np.float32
    assert got["m"].tolist() == [[1] * 4] * 2
    with pytest.raises(PosexportError, match="missing input m"):
        prepare({"input_ids": IDS}, [*MANIFEST.inputs, mask], MANIFEST.limits)


# -- running texts ---------------------------------------------------------------------------------


def test_texts_are_padded_to_the_longest_and_not_cut(session):
    """The tokenizer's file says: cut to 3, pad to 9."""
    arrays = session.tokenize(["a cat sits a cat", "Dog"])
    assert arrays["input_ids"].tolist() == [[1, 3, 4, 5, 3, 4], [1, 6, 0, 0, 0, 0]]
    assert arrays["attention_mask"].tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    assert arrays["token_type_ids"].tolist() == [[0] * 6] * 2
    got = session.run_texts(["a cat sits a cat", "Dog"], outputs=["last_hidden_state"])
    assert list(got) == ["last_hidden_state"]
    np.testing.assert_array_equal(got["last_hidden_state"], expected(*arrays.values()))


def test_padding_is_the_tokenizers(tmp_path):
    config = {"padding_side": "left", "pad_token": {"content": "[SEP]", "lstrip": False}, "model_max_length": 10**30}
    session = posexport.load(write_bundle(tmp_path / "b", texts=True, config=config))
    arrays = session.tokenize(["a cat", "a"])
    assert arrays["input_ids"].tolist() == [[1, 3, 4], [2, 1, 3]]
    assert arrays["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize(("side", "kept"), [("right", 3), ("left", 5)])
def test_long_texts_are_cut_only_when_told(tmp_path, side, kept):
    session = posexport.load(write_bundle(tmp_path / "b", texts=True, config={"truncation_side": side}))
    text = "a " * LIMIT + "sits"
    with pytest.raises(PosexportError, match=r"text 1 has 13 tokens, this bundle takes at most 11 .*truncate=True"):
        session.run_texts(["a", text])
    ids = session.tokenize(["a", text], truncate=True)["input_ids"]
    assert ids.shape == (2, LIMIT)
    assert ids[1, [0, -1]].tolist() == [1, kept]
    assert session.run_texts(["a", text], truncate=True)["last_hidden_state"].shape == (2, LIMIT, 3)
    assert session.tokenize(["a", "dog a"], truncate=True)["input_ids"].tolist() == [[1, 3, 0], [1, 6, 3]]
    # and it leaves no trace
    with pytest.raises(PosexportError, match="13 tokens"):
        session.run_texts([text])


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "got no texts"),
        ("a cat", r"must be a list of strings, got str; give \[text\]"),
        ([b"a"], "text 0 is of type bytes, not str"),
    ],
)
def test_bad_texts_are_a_sentence(session, texts, says):
    with pytest.raises(PosexportError, match=says):
        session.run_texts(texts)


def test_a_text_without_tokens_is_refused(tmp_path):
    bundle = write_bundle(tmp_path / "b", texts=True)
    tokenizer = json.loads((bundle / "tokenizer.json").read_text())
    (bundle / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    session = posexport.load(bundle, check=False)
    with pytest.raises(PosexportError, match=r"text 1 \(' '\) has no tokens"):
        session.run_texts(["a", " "])


def test_a_bundle_without_a_tokenizer_says_so(tmp_path):
    bundle = write_bundle(tmp_path / "b")
    (bundle / "tokenizer.json").write_text("{}")  # no part of the bundle
    with pytest.raises(PosexportError, match=r"has no tokenizer.json, so it takes no texts"):
        posexport.load(bundle).run_texts(["a"])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tokenizer.json", "{}", "cannot use .*tokenizer.json"),
        ("tokenizer.json", "[" * 100_000, "cannot use .*tokenizer.json"),
        ("tokenizer_config.json", '{"padding_side": "middle"}', "padding_side must be left or right, got 'middle'"),
        ("tokenizer_config.json", '{"padding_side": 1}', "cannot use .*tokenizer_config.json"),
    ],
)
def test_a_damaged_tokenizer_is_a_sentence(tmp_path, name, text, says):
    bundle = write_bundle(tmp_path / "b", texts=True, config={})
    (bundle / name).write_text(text)
    with pytest.raises(PosexportError, match=says):
        posexport.load(bundle, check=False).run_texts(["a"])


def test_texts_of_different_lengths_need_a_mask(tmp_path):
    model = tiny_model()
    mask = next(value for value in model.graph.input if value.name == "attention_mask")
    model.graph.input.remove(mask)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[index] = "token_type_ids"
    manifest = msgspec.structs.replace(MANIFEST, inputs=[MANIFEST.inputs[0], MANIFEST.inputs[2]])
    session = posexport.load(write_bundle(tmp_path / "b", model=model, manifest=manifest, texts=True))
    assert session.run_texts(["a cat", "a dog"])["last_hidden_state"].shape == (2, 3, 3)
    with pytest.raises(PosexportError, match="takes no mask, so texts of different lengths cannot share a batch"):
        session.run_texts(["a cat", "a"])


# -- files of arrays -------------------------------------------------------------------------------


def test_arrays_are_read_from_every_kind_of_file(tmp_path, session):
    np.savez(tmp_path / "x.npz", input_ids=IDS, attention_mask=MASK)
    save_file({"input_ids": IDS, "attention_mask": MASK}, tmp_path / "x.safetensors")
    (tmp_path / "x.json").write_text(json.dumps({"input_ids": IDS.tolist(), "attention_mask": MASK.tolist()}))
    for suffix in ("npz", "safetensors", "json"):
        got = session.run(read_arrays(tmp_path / f"x.{suffix}"))["last_hidden_state"]
        np.testing.assert_array_equal(got, expected(IDS, MASK, np.zeros_like(IDS)))


def npy(path):
    with path.open("wb") as file:
        np.save(file, IDS)


def pickled(path):
    np.savez(path, input_ids=np.array([object()]))


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("x.npz", lambda path: path.write_bytes(b"PK\x03\x04"), "not an .npz file"),
        ("x.npz", lambda path: path.write_bytes(b""), "not an .npz file"),
        ("x.npz", lambda path: path.write_bytes(b"text"), "not an .npz file"),
        ("x.npz", npy, "not an .npz file"),
        ("x.npz", pickled, "not an .npz file of plain arrays"),
        ("x.safetensors", lambda path: path.write_bytes(b"\0" * 7), "not a safetensors file"),
        ("x.json", lambda path: path.write_text("[[1]]"), "not a JSON object"),
        ("x.json", lambda path: path.write_text('{"a":' + "[" * 100_000), "not a JSON object"),
        ("x.txt", lambda path: path.write_text(""), "of no known kind; give inputs as .npz, .safetensors, .json"),
        ("x.json", lambda path: path.mkdir(), "does not exist or is not a file"),
        ("x.json", lambda path: path.exists(), "does not exist or is not a file"),
    ],
)
def test_a_bad_file_of_arrays_is_a_sentence(tmp_path, name, make, says):
    make(tmp_path / name)
    with pytest.raises(PosexportError, match=says):
        read_arrays(tmp_path / name)


def test_saving_replaces_nothing_unasked(tmp_path):
    path = tmp_path / "y.npz"
    save_arrays(path, {"x": IDS}, force=False)
    with pytest.raises(PosexportError, match="already exists; give --force"):
        save_arrays(path, {"x": MASK}, force=False)
    assert read_arrays(path)["x"].tolist() == IDS.tolist()
    save_arrays(path, {"x": MASK}, force=True)
    assert read_arrays(path)["x"].tolist() == MASK.tolist()
    with pytest.raises(PosexportError, match=r"must end in \.npz"):
        save_arrays(tmp_path / "y.txt", {"x": IDS}, force=True)
    with pytest.raises(PosexportError, match=r"cannot write .*no is not a directory"):
        save_arrays(tmp_path / "no" / "y.npz", {"x": IDS}, force=True)
    assert [found.name for found in tmp_path.iterdir()] == ["y.npz"]


def test_similarity_is_the_cosine():
    got = similarities(np.array([[3.0, 4.0], [-4.0, 3.0], [6.0, 8.0], [0.0, 0.0]], np.float32))
    wanted = [[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    agree(got, wanted, "operator", np.float64)


# -- the command -----------------------------------------------------------------------------------


def run(*arguments: object):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def test_the_command_shows_texts_and_their_similarity(bundle, session):
    out = run(bundle, "--text", "a cat sits", "--text", "a dog")
    got = session.run_texts(["a cat sits", "a dog"])
    first = " ".join(f"{number:.4f}" for number in got["last_hidden_state"].ravel()[:6])
    lines = out.splitlines()
    assert lines[0] == f"last_hidden_state   float32 [2, 4, 3]  {first} ..."
    assert lines[1].startswith("sentence_embedding  float32 [2, 3]  ")
    cosine = similarities(got["sentence_embedding"])[0, 1]
    assert re.fullmatch(rf"   1  1\.0000\s+{cosine:.4f}  a cat sits", lines[-2])
    assert re.fullmatch(rf"   2\s+{cosine:.4f}  1\.0000  a dog", lines[-1])


def test_one_text_has_no_similarity(bundle):
    assert "cosine" not in run(bundle, "--text", "a cat sits")
    assert "cosine" not in run(bundle, "--text", "a", "--text", "dog", "--only", "last_hidden_state")


def test_json_is_one_document_with_everything(bundle, session):
    document = json.loads(run(bundle, "--text", "a cat sits", "--text", "a dog", "--json"))
    got = session.run_texts(["a cat sits", "a dog"])
    assert document["texts"] == ["a cat sits", "a dog"]
    assert document["providers"] == ["CPUExecutionProvider"]
    for name, array in got.items():
        np.testing.assert_array_equal(np.array(document["outputs"][name], np.float32), array)
    np.testing.assert_array_equal(document["cosine_similarity"], similarities(got["sentence_embedding"]))


def test_arrays_go_in_and_come_out(tmp_path, bundle, session):
    (tmp_path / "x.json").write_text(json.dumps({"input_ids": IDS.tolist()}))
    out = run(bundle, "--inputs", tmp_path / "x.json", "--only", "last_hidden_state", "-o", tmp_path / "y.npz")
    assert out.count("\n") == 1
    saved = read_arrays(tmp_path / "y.npz")
    assert list(saved) == ["last_hidden_state"]
    np.testing.assert_array_equal(saved["last_hidden_state"], session.run({"input_ids": IDS})["last_hidden_state"])


def test_truncation_is_asked_for(bundle):
    text = "a " * 20
    assert "[1, 11, 3]" in run(bundle, "--text", text, "--truncate")
    with pytest.raises(PosexportError, match="--truncate"):
        run(bundle, "--text", text)


def test_texts_stand_in_a_file_too(bundle, tmp_path):
    (tmp_path / "texts.txt").write_text("a a\n\n  a a a\n")
    assert run(bundle, "--texts", str(tmp_path / "texts.txt")) == run(bundle, "--text", "a a", "--text", "a a a")
    with pytest.raises(PosexportError, match=r"cannot read .*none\.txt"):
        run(bundle, "--texts", str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --text, --texts or --inputs, one of them"),
        (["--query", "x"], "--query needs what it ranks; give --text, --texts, or pictures"),
        (["--text", "a", "--inputs", "x.npz"], "give --text, --texts or --inputs, not both"),
        (["--inputs", "x.npz", "--truncate"], "--truncate shortens texts"),
        (["--inputs", "none.npz"], "none.npz does not exist"),
        (["--text", "a", "--provider", "npu"], "unknown provider 'npu'"),
        (["--text", "a", "--only", "pooled"], "unknown output pooled"),
        (["--text", "a", "-o", "y.txt"], r"must end in \.npz"),
    ],
)
def test_what_the_command_cannot_do_is_a_sentence(bundle, arguments, says):
    with pytest.raises(PosexportError, match=says):
        run(bundle, *arguments)


def test_a_changed_manifest_reaches_the_command(tmp_path):
    bundle = write_bundle(tmp_path / "b", texts=True)
    rewrite(bundle, format_version=9)
    with pytest.raises(PosexportError, match="format version 9"):
        run(bundle, "--text", "a")
