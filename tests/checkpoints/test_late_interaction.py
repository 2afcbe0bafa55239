"""`Session.encode` and `rank` of models with a vector for each token, as sentence-transformers gave them (ColBERT)."""

import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import posexport
from posexport import PosexportError, Session
from posexport.base.spec import TextRules, TokenRules
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.run.late_interaction import maxsim
from tests.command import posexport as command
from tests.tolerances import agree

STORED = Path(__file__).parents[1] / "late_interaction"
ASKED = {path.parent.name: json.loads(path.read_text()) for path in sorted(STORED.glob("*/calls.json"))}
TEXTS = json.loads((STORED / "texts.json").read_text())
LIMIT = 1e-5
SHORT = "colbert"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[functools.partial[Session]]:
    """From a checkpoint's name to its open bundle; ci/lab/embedders checks that the default proof of all passes."""
    at = tmp_path_factory.mktemp("late_interaction")

    @functools.cache
    def load(name: str) -> Session:
        posexport.convert(str(STORED / name / "model"), at / name, target="cpu", verify=name != SHORT)
        return posexport.load(at / name)

    yield functools.partial(load)
    load.cache_clear()


def ranked(session: Session) -> np.ndarray:
    """Scores of all texts with the first one, in the order of the texts."""
    found = {each["corpus_id"]: each["score"] for each in session.rank(TEXTS[0], TEXTS)}
    return np.array([found[place] for place in range(len(TEXTS))])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == SHORT else [pytest.mark.all]) for name in ASKED]
)
def test_vectors_and_scores_are_those_of_the_library(opened, name):
    session = opened(name)
    with np.load(STORED / name / "answers.npz") as stored:
        answers = dict(stored)
    assert session.manifest.task == "token-embedding"
    for number, call in enumerate(ASKED[name]["calls"]):
        wanted = answers[str(number)]
        if "rank" in call:
            # a sum over the query's tokens, of which float32 keeps less
            assert np.abs(ranked(session) - wanted).max() <= LIMIT * max(1, wanted.max() / 10)
            continue
        for size in (1, 32):
            got = np.concatenate(session.encode(TEXTS, batch_size=size, **call))
            assert got.shape == wanted.shape, call
            assert np.abs(got - wanted).max() <= LIMIT, call


def test_the_rules_of_a_folder(opened):
    rules = opened(SHORT).manifest.text_rules
    assert (rules.similarity, rules.tokens.query_marker, rules.tokens.filled_to) == ("maxsim", "[unused0]", 32)
    assert (rules.tokens.document_length, rules.tokens.filler, rules.tokens.filler_attended) == (90, "[MASK]", False)


def test_run_ranks(opened, tmp_path):
    session = opened(SHORT)
    words = [word for text in TEXTS for word in ("--text", text)]
    asked = ["run", str(session._directory), *words]
    done = command(*asked, "--query", TEXTS[0], "--json", "-o", str(tmp_path / "scores.npz"))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["query"] == TEXTS[0]
    assert document["ranking"] == session.rank(TEXTS[0], TEXTS)
    with np.load(tmp_path / "scores.npz") as saved:
        assert np.array_equal(saved["scores"], ranked(session))
    lines = command(*asked, "--query", TEXTS[0]).stdout.splitlines()
    assert lines[0].endswith(TEXTS[document["ranking"][0]["corpus_id"]])
    vectors = json.loads(command(*asked, "--prompt-name", "query", "--json").stdout)["outputs"]
    assert np.abs(np.array(vectors["token_embeddings.1"]) - session.encode(TEXTS, prompt_name="query")[1]).max() < LIMIT
    refused = command(*asked, "--query", "a", "--truncate")
    assert refused.returncode == 2
    assert "--query ranks texts, or pictures of pages" in refused.stderr


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"prompt_name": "q"}, "unknown prompt_name 'q'; a model with a vector for each token has query and document"),
        ({"inputs": b"bytes"}, "got bytes where texts are needed"),
    ],
)
def test_what_cannot_be_asked(opened, call, said):
    with pytest.raises(PosexportError, match=said):
        opened(SHORT).encode(**{"inputs": TEXTS[:1]} | call)


def test_pairs_are_ranked_not_predicted(opened):
    with pytest.raises(PosexportError, match="of a vector for each token: use rank"):
        opened(SHORT).predict([("a", "b")])
    with pytest.raises(PosexportError, match="no template"):
        opened(SHORT).rank("a", ["b"], instruction="c")
    with pytest.raises(PosexportError, match="prompt_name 'document': the query's is 'query' here"):
        opened(SHORT).rank("a", ["b"], prompt_name="document")


def test_a_prompt_stands_before_the_ranked_query(opened):
    session = opened(SHORT)
    asked = session.rank(TEXTS[0], TEXTS, prompt="what: ")
    scores = session.similarity(session.encode_query(TEXTS[:1], prompt="what: "), session.encode_document(TEXTS))[0]
    assert (
        np.abs(scores - session.similarity(session.encode_query(TEXTS[:1]), session.encode_document(TEXTS))).max()
        > 1e-3
    )
    agree([hit["score"] for hit in asked], np.sort(scores)[::-1], "another library", np.float32)


def by_hand(states_TC: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Vectors of length 1 of a text's tokens."""
    vectors = np.stack([weight @ state for state in states_TC])
    unit: np.ndarray = vectors / np.sqrt(np.square(vectors).sum(-1, keepdims=True))
    return unit


def test_the_graph_is_the_formula_in_float64():
    model = STORED / SHORT / "model"
    weight = load_file(model / "model.safetensors")["linear.weight"].double().numpy()
    source = checkpoint_source(model, task=None, allow_pickle=False)
    ids, mask = torch.arange(20, 34).view(2, 7), torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    with torch.inference_mode():
        module = source.module.double()
        (got,) = module(input_ids=ids, attention_mask=mask)
        states = module.encoder(ids, mask, None).numpy()
    for row in range(2):
        agree(got[row], torch.from_numpy(by_hand(states[row], weight)), "rounded", torch.float64)


def test_maxsim_by_hand():
    rng = np.random.default_rng(3)
    query, documents = rng.standard_normal((5, 4)), [rng.standard_normal((count, 4)) for count in (3, 1, 7)]
    wanted = [
        sum(max(sum(a * b for a, b in zip(q, d, strict=True)) for d in document) for q in query)
        for document in documents
    ]
    agree(maxsim(query, documents, TextRules(similarity="maxsim")), np.array(wanted), "rounded", np.float64)
    mean = maxsim(query, documents, TextRules(similarity="meanmaxsim"))
    agree(mean, np.array(wanted) / 5, "rounded", np.float64)
    assert maxsim(query, [np.empty((0, 4)), *documents], TextRules()).argmin() == 0


def change(folder: Path, name: str, **values: Any) -> None:
    content = json.loads((folder / name).read_text()) | values
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    def made(name: str) -> Path:
        shutil.copytree(STORED / name / "model", tmp_path / "model")
        return tmp_path / "model"

    return made


def tokens_of(folder: Path) -> TokenRules:
    rules = checkpoint_source(folder, task="token-embedding", allow_pickle=False).text_rules
    assert rules is not None
    assert rules.tokens is not None
    return rules.tokens


def test_a_checkpoint_without_metadata_has_the_defaults(copied):
    folder = copied(SHORT)
    (folder / "artifact.metadata").unlink()
    tensors = load_file(folder / "model.safetensors")
    tensors["linear.weight"] = torch.randn(128, tensors["linear.weight"].shape[1])
    save_file(tensors, folder / "model.safetensors")
    tokens = tokens_of(folder)
    assert (tokens.query_marker, tokens.document_marker) == ("[unused0]", "[unused1]")
    assert (tokens.query_length, tokens.document_length, tokens.filled_to, len(tokens.skipped)) == (32, None, 32, 32)


@pytest.mark.parametrize(
    ("name", "file", "values", "said"),
    [
        (SHORT, "artifact.metadata", {"similarity": "l2"}, "similarity = 'l2'; only cosine is read"),
        (SHORT, "artifact.metadata", {"dim": 13}, r"linear.weight is \[12, 24\], needed \[13, 24\]"),
        ("colbert-native", "2_MultiVectorMask/config.json", {"keep_only_token_ids": [3]}, "only null is read"),
        ("colbert-native", "2_MultiVectorMask/config.json", {"skiplist_tasks": ["query"]}, "only document, with or"),
        ("colbert-native", "sentence_bert_config.json", {"query_expansion": {"strategy": "fixed"}}, "and a length of"),
        ("colbert-pylate", "1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "only token_embeddings"),
        ("colbert-pylate", "config_sentence_transformers.json", {"skiplist_words": [1]}, "must be a list of tokens"),
    ],
)
def test_what_is_refused(copied, name, file, values, said):
    folder = copied(name)
    change(folder, file, **values)
    with pytest.raises(PosexportError, match=said):
        checkpoint_source(folder, task=None, allow_pickle=False)


def test_other_tasks_of_the_folder(copied):
    folder = copied("colbert-pylate")
    assert checkpoint_source(folder, task="features", allow_pickle=False).text_rules is None
    with pytest.raises(PosexportError, match="this one is for token-embedding"):
        checkpoint_source(folder, task="sentence-embedding", allow_pickle=False)


def test_a_tokenizer_without_the_marker(opened):
    session = opened(SHORT)
    rules = session.manifest.text_rules
    other = TokenRules(query_marker="[Q]")
    changed = msgspec.structs.replace(session.manifest, text_rules=msgspec.structs.replace(rules, tokens=other))
    with pytest.raises(PosexportError, match=r"the tokenizer has no token '\[Q\]'"):
        Session(session._directory, changed, session._chain).encode(TEXTS[:1], prompt_name="query")
