"""Sessions are called as sentence-transformers' models are, and answer as they did (tests/answers/vectors)."""

import functools
import json
import threading

import numpy as np
import pytest

import posexport
from ci.answers import vector_calls
from ci.answers.vectors import GOLDEN, PROMPTS, STORED, TESTS, stored_model, texts_of
from posexport import PosexportError
from posexport.base.spec import TextRules
from posexport.checkpoints.bidirectional import as_stated
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.families.registry import FAMILIES
from posexport.run.embed import quantized, quantized_rows, similarity, similarity_pairwise, unit
from tests.command import posexport as command
from tests.tolerances import agree


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    at = tmp_path_factory.mktemp("vectors")

    @functools.cache
    def load(name):
        posexport.convert(str(stored_model(name, at)), at / f"{name}.bundle", target="cpu", verify=False)
        return posexport.load(at / f"{name}.bundle")

    yield load
    load.cache_clear()


@functools.cache
def answers(name):
    with np.load(STORED / f"{name}.npz") as stored:
        return dict(stored)


#: the rest is asked in test_cross_encoders.py
NAMES = ("embedder", "reranker", "bidirectional", "first-token")


@pytest.mark.all(but=("embedder", "reranker", "bidirectional"))
@pytest.mark.parametrize(("name", "call"), [(name, call) for name in NAMES for call in GOLDEN[name].calls])
def test_the_answer_is_the_librarys(opened, name, call):
    stored = answers(name)
    right = [stored[key] for key in (f"{call}.{number}" for number in range(len(stored))) if key in stored]
    got = vector_calls.as_arrays(GOLDEN[name].calls[call](opened(name), texts_of(name)))
    assert not vector_calls.difference(got, right)


def test_the_comparison_sees_differences():
    right = [np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)]
    assert not vector_calls.difference(right, right)
    assert vector_calls.difference([right[0] + 1e-4], right).startswith("off by")
    assert vector_calls.difference([right[0][:1]], right) == "float32 [1, 2], not float32 [2, 2]"
    assert vector_calls.difference([right[0].astype(np.int8)], right)
    assert vector_calls.difference([], right) == "0 arrays, not 1"
    levels = [np.arange(50, dtype=np.int8)]
    assert vector_calls.difference([levels[0] + np.int8(2)], levels) == "50 of 50 differ"


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precisions_of_the_same_vectors_are_the_librarys_to_the_bit(precision):
    stored = answers("embedder")
    vectors = stored["float32.0"]
    vectors = {"uint8": unit(vectors), "ubinary": vectors[:, :9]}.get(precision, vectors)
    got = quantized(vectors, precision)
    assert (got.dtype, got.tolist()) == (stored[f"{precision}.0"].dtype, stored[f"{precision}.0"].tolist())
    assert quantized_rows([vectors[:3], vectors[3:]], precision)[1].tolist() == got[3:].tolist()


def test_without_the_causal_mask_vectors_are_others(opened):
    causal = posexport.convert(
        str(TESTS / GOLDEN["bidirectional"].folder / "model"),
        opened("bidirectional")._directory.parent / "causal",
        target="cpu",
        verify=False,
    )
    assert not any("is_causal" in remark for remark in causal.remarks)
    texts = texts_of("bidirectional")
    far = np.abs(posexport.load(causal.output).encode(texts) - opened("bidirectional").encode(texts))
    assert far.max() > 0.05  # of vectors of length 1


def config_of(tmp_path, **values):
    (tmp_path / "config.json").write_text(json.dumps(values))
    return Config(Directory(tmp_path), "config.json")


BART = {
    "max_position_embeddings": 32,
    **{f"{half}_{name}": 2 for half in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")},
}
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


def test_a_window_without_the_causal_mask_is_on_both_sides(tmp_path):
    config = config_of(tmp_path, model_type="mistral", is_causal=False, sliding_window=5, **SIZES)
    plan = as_stated(FAMILIES["mistral"].build(config, "features"), config, FAMILIES["mistral"], "features")
    assert not plan.model.causal
    assert {(each.term.left, each.term.right) for each in plan.model.encodings} == {(5, 5)}
    assert all(not layer.attention.causal for layer in plan.model.decoder.layers)
    assert "is_causal = false: tokens attend to later ones too" in config.remarks[0]


@pytest.mark.parametrize(
    ("model_type", "task", "said"),
    [
        ("bloom", "features", r"not computed for the positions of bloom \(alibi\)"),
        ("llama", "text-generation", "nothing can be generated .*choose --task features"),
        ("bart", "text2text-generation", "is not computed for bart here"),
    ],
)
def test_what_needs_the_causal_mask(tmp_path, model_type, task, said):
    config = config_of(
        tmp_path, model_type=model_type, is_causal=False, **SIZES, d_model=16, n_head=2, n_layer=2, **BART
    )
    family = FAMILIES[model_type]
    config.spellings = family.spellings
    with pytest.raises(PosexportError, match=said):
        as_stated(family.build(config, task), config, family, task)


def test_prompts_stand_before_the_first_text(opened):
    session = opened("reranker")
    rules = session.manifest.pair_rules
    assert (rules.prompts, rules.default_prompt) == (PROMPTS["prompts"], "first")
    assert session.predict(("a", "b")) == session.predict((f"{PROMPTS['prompts']['first']}a", "b"), prompt="")
    assert abs(session.predict(("a", "b")) - session.predict(("a", "b"), prompt="")) > 1e-4
    with pytest.raises(
        PosexportError, match="unknown prompt_name 'query'; this bundle has first, other; or give prompt"
    ):
        session.predict([("a", "b")], prompt_name="query")


def test_generators_are_texts_and_pairs(opened):
    texts = texts_of("embedder")[:2]
    session = opened("embedder")
    assert np.array_equal(session.encode(text for text in texts), session.encode(texts))
    assert np.array_equal(session.encode(sentences=texts), session.encode(texts))
    assert session.encode([], output_value="token_embeddings") == []
    reranker = opened("reranker")
    pairs = vector_calls.pairs_of(texts_of("reranker"))[:2]
    assert np.array_equal(reranker.predict(pair for pair in pairs), reranker.predict(pairs))
    assert reranker.rank("a", (text for text in texts)) == reranker.rank("a", texts)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.predict(("a", "b"), activation_fn="torch.nn.Mish"), "scores that are 'torch.nn.Mish' of logits"),
        (lambda s: s.predict(("a", "b"), activation_fn="os.Sigmoid"), "scores that are 'os.Sigmoid' of logits"),
        (lambda s: s.predict(("a", "b"), convert_to_tensor=True), "convert_to_tensor = True, which needs PyTorch"),
        (lambda s: s.predict(("a", "b"), pool={}), "predict got pool = {}, which needs PyTorch: open one session"),
        (lambda s: s.predict([("a", "b", "c")]), r"pair 0 must be two texts, got \('a', 'b', 'c'\)"),
        (lambda s: s.predict(("a", "b"), instruction="x"), "has no template that an instruction could stand in"),
        (lambda s: s.rank("a", "b"), r"documents must be a list of str, got one str; give \[document\]"),
        (lambda s: s.rank(["a"], ["b"]), r"the query must be a str, got \['a'\]"),
        (lambda s: s.rank("a", ["b"], top_k=0), "top_k must be at least 1, got 0"),
        (lambda s: s.rank("a", ["b"], device="cuda"), "device = 'cuda', which needs PyTorch"),
    ],
)
def test_what_cannot_be_asked(opened, call, said):
    with pytest.raises(PosexportError, match=said):
        call(opened("reranker"))


def test_what_asks_for_nothing_is_taken(opened):
    session = opened("reranker")
    assert session.predict(("a", "b"), convert_to_tensor=False, device=None, pool=None) == session.predict(("a", "b"))


def test_a_function_of_arrays_is_an_activation(opened):
    session = opened("reranker")
    logit = session.predict(("a", "b"), activation_fn="Identity")
    assert session.predict(("a", "b"), activation_fn=lambda logits: 2 * logits) == 2 * logit


A, B = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32), np.array([[0.0, 2.0]], np.float32)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cosine", [[0.8], [0]]),
        ("dot", [[8], [0]]),
        ("euclidean", [[-np.sqrt(13)], [-np.sqrt(5)]]),
        ("manhattan", [[-5], [-3]]),
    ],
)
def test_the_similarity_that_the_folder_names(name, wanted):
    rules = TextRules(similarity=name)
    agree(similarity(A, B, rules), wanted, "operator", np.float32)
    agree(similarity_pairwise(A, np.repeat(B, 2, 0), rules), np.array(wanted)[:, 0], "operator", np.float32)
    agree(similarity(A.astype(np.int8), B[0].astype(np.int8), rules), wanted, "operator", np.float32)


def test_what_has_no_similarity():
    for first, second, said in (
        (A, B[:, :1], "vectors of 2 and of 1 elements have no similarity"),
        (["a"], B, "vectors must be numbers"),
        ([[1.0], [1.0, 2.0]], B, "must be one array"),
    ):
        with pytest.raises(PosexportError, match=said):
            similarity(first, second, TextRules())
    with pytest.raises(PosexportError, match="as many vectors on both sides, got 2 and 1"):
        similarity_pairwise(A, B, TextRules())


def test_the_bar_is_on_stderr(opened, capsys):
    told = []
    opened("embedder").encode(["a", "b"], show_progress_bar=True, progress=lambda *done: told.append(done))
    assert told[-1] == (2, 2, "texts")
    assert "Encoding" in capsys.readouterr().err
    opened("embedder").encode([], show_progress_bar=True)
    bars = [thread for thread in threading.enumerate() if type(thread).__module__.startswith("rich")]
    for bar in bars:
        bar.join(2)
    assert not any(bar.is_alive() for bar in bars)


def test_the_command_line(opened):
    directory = str(opened("reranker")._directory)
    words = ["run", directory, "--query", "a", "--text", "b", "--text", "c", "--json"]
    done = command(*words, "--prompt-name", "other", "--activation-fn", "Identity", "--top-k", "1")
    assert done.returncode == 0, done.stderr
    wanted = opened("reranker").rank("a", ["b", "c"], 1, prompt_name="other", activation_fn="Identity")
    agree(json.loads(done.stdout)["ranking"][0]["score"], wanted[0]["score"], "another library", np.float32)
    refused = command(*words, "--truncate-dim", "2")
    assert refused.returncode == 2
    assert "leave out" in refused.stderr
