"""posexport.sentence_transformers and ``--layout sentence-transformers``.

Without the library: the files of the layout, and what the module computes, against the library's answers in
tests/embedders and tests/rerankers. With it (``ci/engines/setup sentence-transformers``): ci/answers.
"""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

import posexport
from ci.answers import vectors
from posexport import PosexportError
from posexport.base.options.recipe import LAYOUTS
from posexport.base.spec import OutputSpec
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.export.layout import arranged
from posexport.conversion.result import Conversion
from posexport.run.bundle.read import read
from posexport.sentence_transformers.backend import Backend, outputs_of
from tests.engines import running
from tests.tiny_bundle import MANIFEST, write_bundle
from tests.tolerances import agree

STORED = Path(__file__).parents[1]
CLASS = "posexport.sentence_transformers.Transformer"
TEXTS = json.loads((STORED / "embedders" / "texts.json").read_text())
PAIRS = json.loads((STORED / "rerankers" / "texts.json").read_text())
PAIRS = list(zip(PAIRS, [*PAIRS[1:], PAIRS[0]], strict=True))
LIMIT = 1e-5


def converted(name: str, target: Path) -> Path:
    source = STORED / name / "model"
    posexport.convert(str(source), target, layout="sentence-transformers", verify=False, allow_pickle=True)
    return target


def answer(name: str, number: int) -> np.ndarray:
    with np.load(STORED / name / "answers.npz") as stored:
        return stored[str(number)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted("embedders/bert-prompt-excluded", tmp_path_factory.mktemp("layout") / "bundle")


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted("rerankers/cross-encoder", tmp_path_factory.mktemp("layout") / "bundle")


def test_the_folder_names_one_module_and_keeps_what_the_model_says(folder: Path) -> None:
    assert json.loads((folder / "modules.json").read_text()) == [{"idx": 0, "name": "0", "path": "", "type": CLASS}]
    said = json.loads((folder / "config_sentence_transformers.json").read_text())
    before = json.loads((STORED / "embedders/bert-prompt-excluded/model/config_sentence_transformers.json").read_text())
    assert said == before | {"model_type": "SentenceTransformer"}
    assert said["prompts"]["query"]
    posexport.load(folder)  # a bundle all the same, these files among its own


@pytest.mark.parametrize(("name", "cls"), [("folder", "SentenceTransformer"), ("scorer", "CrossEncoder")])
def test_a_conversion_ends_with_the_line_that_loads_the_folder(
    name: str, cls: str, request: pytest.FixtureRequest
) -> None:
    target: Path = request.getfixturevalue(name)
    said = Conversion(target, read(target), None).to_text(width=40)
    assert said.splitlines()[-1] == f'load it with {cls}("{target}", trust_remote_code=True)'


def test_a_cross_encoder_s_folder_names_its_activation(scorer: Path) -> None:
    said = json.loads((scorer / "config_sentence_transformers.json").read_text())
    assert (said["model_type"], said["activation_fn"]) == ("CrossEncoder", "torch.nn.Sigmoid")


def test_several_labels_are_said_by_a_projection_that_changes_nothing(tmp_path: Path) -> None:
    source = checkpoint_source(
        STORED / "golden" / "distilbert-forsequenceclassification", task=None, allow_pickle=False
    )
    LAYOUTS["sentence-transformers"].write(tmp_path, arranged(source, "sentence-transformers"))
    kinds = [module["type"] for module in json.loads((tmp_path / "modules.json").read_text())]
    assert kinds == [CLASS, "sentence_transformers.base.modules.dense.Dense"]
    labels = source.outputs[0].axes[-1]
    config = json.loads((tmp_path / "1_Dense" / "config.json").read_text())
    assert (config["out_features"], config["module_output_name"], config["bias"]) == (labels, "scores", False)
    weight = load_file(tmp_path / "1_Dense" / "model.safetensors")["linear.weight"]
    np.testing.assert_array_equal(weight, np.eye(labels))
    said = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert said["activation_fn"] == "torch.nn.Identity"


def test_splade_is_for_sparse_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = tmp_path / "saved.json"
    modules.write_text('[{"type": "sentence_transformers.models.Transformer"}, {"type": "x.SpladePooling"}]')
    source = checkpoint_source(STORED / "embedders/bert-prompt-excluded/model", task=None, allow_pickle=False)
    monkeypatch.setitem(source.files, "modules.json", modules)
    LAYOUTS["sentence-transformers"].write(tmp_path, source)
    assert json.loads((tmp_path / "config_sentence_transformers.json").read_text())["model_type"] == "SparseEncoder"


def test_other_tasks_have_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=r"is for embedders and cross-encoders; .* is for text-generation"):
        posexport.convert(
            str(STORED / "golden" / "gpt2-lmheadmodel"), tmp_path / "x", layout="sentence-transformers", verify=False
        )


@pytest.mark.parametrize("number", [0, 3, 4])
def test_vectors_are_those_of_the_library(folder: Path, number: int) -> None:
    """Behind no prompt but the default one, one by its text, and a named one: their tokens are not pooled."""
    call = json.loads((STORED / "embedders/bert-prompt-excluded/calls.json").read_text())["calls"][number]
    backend = Backend(folder, {"threads": 1})
    rules = backend.manifest.text_rules
    assert rules is not None
    prompt = call.get("prompt") or rules.prompts[call.get("prompt_name") or rules.default_prompt]
    features = backend.preprocess(TEXTS, prompt)
    given = backend.forward(features)
    wanted = answer("embedders/bert-prompt-excluded", number)
    assert given["sentence_embedding"].shape == wanted.shape
    assert np.abs(given["sentence_embedding"] - wanted).max() <= LIMIT * np.abs(wanted).max()
    assert given["token_embeddings"].shape[:2] == features["input_ids"].shape
    pooled = backend.forward({name: x for name, x in features.items() if name != "prompt_length"})
    assert np.abs(pooled["sentence_embedding"] - wanted).max() > 0.1


def test_scores_are_those_of_the_library(scorer: Path) -> None:
    backend = Backend(scorer, {"threads": 1, "provider": "CPUExecutionProvider"})
    given = backend.forward(backend.preprocess(PAIRS, None))["scores"]
    wanted = answer("rerankers/cross-encoder", 0)
    assert np.abs(1 / (1 + np.exp(-given[:, 0])) - wanted).max() <= LIMIT
    assert backend.dimension == 1
    prompted = backend.preprocess(PAIRS[:1], "Say: ")
    by_hand = backend.preprocess([(f"Say: {PAIRS[0][0]}", PAIRS[0][1])], None)
    np.testing.assert_array_equal(prompted["input_ids"], by_hand["input_ids"])


@pytest.mark.parametrize("name", ["logit-score", "pooled-scores"])
def test_scores_of_modules_are_those_of_the_session(name: str, tmp_path: Path) -> None:
    """Behind a chat template with a prompt as the system's message, and of pooled states with three labels."""
    source = vectors.stored_model(name, tmp_path)
    bundle = tmp_path / "bundle"
    posexport.convert(str(source), bundle, layout="sentence-transformers", verify=False)
    backend, session = Backend(bundle, {"threads": 1}), posexport.load(bundle)
    pairs = [(text[:90], other[:60]) for text, other in PAIRS[:4]]
    for prompt in ("", "ba ce: "):
        got = backend.forward(backend.preprocess(pairs, prompt))["scores"]
        wanted = session.predict(pairs, prompt=prompt, activation_fn="Identity")
        agree(got, wanted.reshape(got.shape), "another library", np.float32)
    backend.max_length = 30
    assert backend.preprocess(pairs, "ba ce: ")["input_ids"].shape[1] == 30
    kinds = [module["type"] for module in json.loads((bundle / "modules.json").read_text())]
    assert len(kinds) == (1 if name == "logit-score" else 2)


def test_the_length_can_be_set(folder: Path, scorer: Path) -> None:
    backend = Backend(folder, {})
    assert backend.max_length == 128
    backend.max_length = 9
    assert backend.max_length == 9
    assert backend.preprocess(TEXTS, None)["input_ids"].shape == (len(TEXTS), 9)
    backend.max_length = 4096  # a text cannot be longer than the model
    assert backend.max_length == 128
    pairs = Backend(scorer, {})
    pairs.max_length = 12
    assert pairs.preprocess(PAIRS, None)["input_ids"].shape == (len(PAIRS), 12)


def test_refusals(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=r"unknown option torch_dtype; a bundle is opened with provider, "):
        Backend(folder, {"torch_dtype": "float16"})
    backend = Backend(folder, {})
    with pytest.raises(PosexportError, match="takes texts, or pairs of texts, got 3"):
        backend.preprocess(["a", 3], None)  # type: ignore[list-item]
    with pytest.raises(PosexportError, match="pair 1 must be two texts"):
        backend.preprocess([("a", "b"), ("a",)], None)
    for length in (0, True, 2.5):
        with pytest.raises(PosexportError, match="max_seq_length must be at least 1"):
            backend.max_length = length  # type: ignore[assignment]
    with pytest.raises(PosexportError, match=r"has no tokenizer\.json"):
        Backend(write_bundle(tmp_path / "tiny"), {})
    generating = msgspec.structs.replace(
        MANIFEST, task="text-generation", outputs=[OutputSpec(name="logits", axes=["batch_size", "sequence_length", 9])]
    )
    with pytest.raises(PosexportError, match="is for text-generation and gives logits; sentence-transformers needs"):
        outputs_of(generating)


@pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is not None, reason="it is installed")
def test_the_library_is_named_where_it_is_lacking() -> None:
    import posexport.sentence_transformers as package

    with pytest.raises(PosexportError, match=r"needs sentence-transformers 5 or 6, .*pip install"):
        _ = package.Transformer


def test_the_module_in_the_library(folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    wanted = answer("embedders/bert-prompt-excluded", 0)
    assert np.abs(model.encode(TEXTS) - wanted).max() <= LIMIT * np.abs(wanted).max()


@pytest.mark.all
def test_every_class_of_the_library_answers_as_on_the_pytorch_model(tmp_path: Path) -> None:
    python = running.environment("sentence-transformers") / "python"
    done = subprocess.run(
        [python, "-m", "ci.answers.run", "sentence_transformers", "--no-record", "--into", tmp_path],
        cwd=running.ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(running.ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    assert ", 0 DIFFERS" in done.stdout
