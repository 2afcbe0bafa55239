"""`Session.encode` gives what sentence-transformers gave (tests/embedders, written by ci/lab/embedders/make.py)."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import posexport
from posexport import PosexportError, Session
from tests.command import posexport as command
from tests.tiny_bundle import write_bundle

STORED = Path(__file__).parents[1] / "embedders"
ASKED = {path.parent.name: json.loads(path.read_text()) for path in sorted(STORED.glob("*/calls.json"))}
TEXTS = json.loads((STORED / "texts.json").read_text())
#: what the issue asks for, of vectors whose elements are about 1
LIMIT = 1e-5


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[functools.partial[Session]]:
    """From a checkpoint's name to its open bundle; the proof of these definitions is tested elsewhere."""
    at = tmp_path_factory.mktemp("embedders")

    @functools.cache
    def load(name: str) -> Session:
        posexport.convert(str(STORED / name / "model"), at / name, target="cpu", verify=False, allow_pickle=True)
        return posexport.load(at / name)

    yield functools.partial(load)
    load.cache_clear()


#: one is asked in the short tests: with two projections, a default prompt, a vector cut
SHORT = "embeddinggemma"
#: all poolings side by side, without the tokens of prompts; one is behind every text
EXCLUDED = "bert-prompt-excluded"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in (SHORT, EXCLUDED) else [pytest.mark.all]) for name in ASKED]
)
def test_encode_is_that_of_the_library(opened, name):
    with np.load(STORED / name / "answers.npz") as stored:
        answers = dict(stored)
    for number, call in enumerate(ASKED[name]["calls"]):
        wanted = answers[str(number)]
        got = opened(name).encode(TEXTS, **call)
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), call
        assert np.abs(got - wanted).max() <= LIMIT * max(1, np.abs(wanted).max() / 10), call


def test_batches_change_nothing_and_keep_the_order(opened):
    session = opened(SHORT)
    whole = session.encode(TEXTS)
    for size in (1, 3):
        assert np.abs(session.encode(TEXTS, batch_size=size) - whole).max() <= LIMIT
    with pytest.raises(PosexportError, match="batch_size must be at least 1, got 0"):
        session.encode(TEXTS, batch_size=0)


def test_the_manifest_has_the_rules(opened):
    rules = opened(SHORT).manifest.text_rules
    assert rules is not None
    assert (rules.default_prompt, rules.truncate_dim, rules.max_length) == ("document", 16, 512)


def test_run_does_the_same(opened):
    session = opened(SHORT)
    words = ["run", str(session._directory), "--json", *(word for text in TEXTS[:2] for word in ("--text", text))]
    for options, call in (
        ([], {}),
        (["--prompt-name", "query", "--truncate-dim", "5"], {"prompt_name": "query", "truncate_dim": 5}),
        (["--prefix", "", "--normalize-embeddings"], {"prompt": "", "normalize_embeddings": True}),
    ):
        done = command(*words, *options)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["outputs"]
        assert list(found) == ["sentence_embedding"]
        assert np.abs(np.array(found["sentence_embedding"]) - session.encode(TEXTS[:2], **call)).max() <= LIMIT
    states = command(*words, "--only", "last_hidden_state", "--truncate")
    assert list(json.loads(states.stdout)["outputs"]) == ["last_hidden_state"]
    refused = command(*words, "--only", "last_hidden_state", "--prefix", "x")
    assert refused.returncode == 2
    assert "are for the vectors of texts" in refused.stderr


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"prompt_name": "q"}, "unknown prompt_name 'q'; this bundle has document, query; or give prompt"),
        ({"truncate_dim": 0}, "truncate_dim must be at least 1, got 0"),
        ({"inputs": [TEXTS[0], 3]}, "text 1 is of type int, not str: 3; leave it out"),
        ({"inputs": 3}, "got int where texts are needed"),
        ({"precision": "int4"}, "precision 'int4' is not known; choose one of float32, int8,"),
        ({"precision": "int8"}, "takes its ranges from the vectors themselves, and there is one only"),
        ({"output_value": None}, "output_value = None is not computed here; it must be sentence_embedding or"),
        ({"convert_to_tensor": True}, "convert_to_tensor = True, which needs PyTorch: the result is a NumPy array"),
        ({"device": "cuda"}, r"device = 'cuda', which needs PyTorch: .*posexport.load\(bundle, provider"),
        ({"task": "query"}, "this bundle has no adapters to choose from"),
    ],
)
def test_what_cannot_be_asked(opened, call, said):
    with pytest.raises(PosexportError, match=said):
        opened(SHORT).encode(**{"inputs": TEXTS[:1]} | call)


def test_a_prompt_goes_before_its_name(opened):
    session = opened(SHORT)
    with pytest.warns(UserWarning, match="prompt 'x ' is used and prompt_name 'query' ignored"):
        vectors = session.encode(TEXTS[:2], prompt_name="query", prompt="x ")
    assert np.array_equal(vectors, session.encode(TEXTS[:2], prompt="x "))


def with_rules(session, **rules):
    """The same bundle with other rules for texts."""
    changed = msgspec.structs.replace(session.manifest.text_rules, **rules)
    return Session(session._directory, msgspec.structs.replace(session.manifest, text_rules=changed), session._chain)


def test_a_bundle_that_cannot_leave_prompts_out_refuses_them(opened):
    other = with_rules(opened(SHORT), prompt_pooled=False, default_prompt=None)
    other.encode(TEXTS[:1])
    with pytest.raises(
        PosexportError, match=r"has no input prompt_mask .*convert it again, .*without the prompt 'task"
    ):
        other.encode(TEXTS[:1], prompt_name="query")


def test_what_is_left_out_is_the_prompt(opened):
    session = opened(EXCLUDED)
    left_out = session.encode(TEXTS, prompt_name="query")
    assert np.abs(with_rules(session, prompt_pooled=True).encode(TEXTS, prompt_name="query") - left_out).max() > 1
    assert np.abs(session.encode(TEXTS, prompt_name="query", batch_size=1) - left_out).max() <= 10 * LIMIT
    # fed by hand, padded on the right: the same; left out, nothing is marked
    row = session._texts.rows([session.manifest.text_rules.prompts["query"] + TEXTS[0]], truncate=True)[0]
    feeds = {"input_ids": [[*row.ids, 0, 0]], "attention_mask": [[1] * len(row.ids) + [0, 0]]}
    count = session._texts.prompt_length(session.manifest.text_rules.prompts["query"])
    marks = [[1] * count + [0] * (len(row.ids) + 2 - count)]
    by_hand = session.run({**feeds, "prompt_mask": marks})["sentence_embedding"]
    assert np.abs(by_hand - left_out[:1]).max() <= 10 * LIMIT
    unmarked = with_rules(session, prompt_pooled=True).encode(TEXTS[:1], prompt_name="query")
    assert np.abs(session.run(feeds)["sentence_embedding"] - unmarked).max() <= 10 * LIMIT


def test_a_bundle_without_rules_cuts_only_when_told(tmp_path):
    session = posexport.load(write_bundle(tmp_path / "b", texts=True))
    assert session.encode(["a cat", "a"]).shape == (2, 3)
    with pytest.raises(PosexportError, match="tokens, this bundle takes at most 11"):
        session.encode(["a " * 20])
    assert session.encode(["a " * 20], truncate=True).shape == (1, 3)


def test_a_bundle_without_vectors_says_so(tmp_path):
    posexport.convert("encoder-nope", tmp_path / "b", settings={"layers": 1}, verify=False)
    with pytest.raises(PosexportError, match="gives last_hidden_state and no sentence_embedding; use run_texts"):
        posexport.load(tmp_path / "b").encode(["a"])
