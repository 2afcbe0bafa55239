"""`posexport.pipeline` answers as ``transformers.pipeline`` did (tests/answers/pipelines, ci/answers/pipelines.py)."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import posexport
from ci.answers.pipelines import CHAT, Ask, equal, ours
from ci.answers.seeded import rebuild
from posexport import PosexportError, Session
from posexport.base.tasks.registry import TASKS
from posexport.run.pipelines.generating import source_tokens, target_token
from posexport.run.pipelines.question_answering import spans
from posexport.run.pipelines.text_pipeline import cleaned_up
from posexport.run.pipelines.token_classification import without_overlaps
from tests.command import posexport as command
from tests.tiny_bundle import write_bundle

STORED = Path(__file__).parents[2] / "answers" / "pipelines"
#: by version of transformers: 4.57.6 answered what 5.24 no longer has
ROWS = [row for major in (5, 4) for row in json.loads((STORED / f"answers-{major}.json").read_text())]
#: one of each kind of head, of tokenizer, and of generation
SHORT = ("bert-classes", "bert-ner", "bert-mask", "roberta-qa", "gpt2")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Session]]:
    """From a checkpoint's name to its open bundle."""
    at = tmp_path_factory.mktemp("pipelines")

    @functools.cache
    def load(name: str) -> Session:
        checkpoint = rebuild(STORED / f"{name}.json", at / name)
        posexport.convert(str(checkpoint), at / f"{name}-bundle", target="cpu", verify=False)
        return posexport.load(at / f"{name}-bundle")

    yield load
    load.cache_clear()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in SHORT else [pytest.mark.all])
        for name in dict.fromkeys(row["model"] for row in ROWS)
    ],
)
def test_answers_are_those_of_the_library(opened, name):
    for row in ROWS:
        if row["model"] == name:
            answer = row.pop("answer")
            found = ours(Ask(**row), opened(name))
            assert equal(found, answer), (row, found, answer)


def test_what_is_equal():
    assert equal({"score": 0.5, "word": "a"}, {"score": 0.500001, "word": "a"})
    for other in (
        {"score": 0.51, "word": "a"},
        {"score": 0.5, "word": "b"},
        {"word": "a", "score": 0.5},
        {"score": 0.5},
    ):
        assert not equal({"score": 0.5, "word": "a"}, other)
    assert not equal([1], [1.0])


def test_batches_change_nothing(opened):
    texts = ["I live in Paris.", "x", "the river police and the library", "a cat"] * 2
    for model, options in (("bert-classes", {"top_k": 2}), ("bert-ner", {"aggregation_strategy": "average"})):
        ask = posexport.pipeline(opened(model))
        whole = ask(texts, **options)
        assert equal(whole, [ask(text, **options) for text in texts])
        assert equal(whole, ask(texts, batch_size=3, **options))
        assert equal(whole, list(ask(iter(texts), batch_size=2, **options)))


def test_one_input_gives_one_answer_and_a_list_a_list(opened):
    classify = posexport.pipeline(opened("bert-classes"))
    pair = {"text": "a cat", "text_pair": "b"}
    assert classify([pair]) == [classify(pair)]
    assert classify("a cat") == classify(["a cat"])
    assert classify(["a cat"], top_k=1) == [classify("a cat")]
    assert classify([]) == []


def test_a_generator_is_read_as_answers_are_asked_for(opened):
    read = []

    def texts() -> Iterator[str]:
        for text in ("a cat", "two words here", "x"):
            read.append(text)
            yield text

    answers = posexport.pipeline(opened("bert-classes"))(texts())
    assert read == []
    next(answers)
    assert read == ["a cat"]
    assert len(list(answers)) == 2


def test_chats_from_an_iterator_are_answered(opened):
    talk = posexport.pipeline(opened("gpt2"), do_sample=False, max_new_tokens=3)
    (answer,) = talk(CHAT)
    assert list(talk(iter([CHAT, CHAT]))) == [[answer], [answer]]
    assert talk(iter(CHAT)) == [answer]
    assert answer["generated_text"][-1]["role"] == "assistant"


def test_sampling_is_the_default_as_in_the_library(opened):
    go_on = posexport.pipeline(opened("gpt2"), "text-generation", max_new_tokens=12, return_full_text=False)
    assert go_on("Paris", seed=1) == go_on("Paris", seed=1)
    assert len({go_on("Paris", seed=seed)[0]["generated_text"] for seed in range(4)}) > 1


def test_names_of_tasks(opened):
    assert posexport.pipeline(opened("bert-classes")).task == "text-classification"
    assert posexport.pipeline(opened("bert-classes"), "sentiment-analysis").task == "sentiment-analysis"
    assert posexport.pipeline(opened("bert-ner"), "ner")("x") == posexport.pipeline(opened("bert-ner"))("x")
    assert repr(posexport.pipeline(opened("bert-ner"))) == "<posexport pipeline token-classification: bert-ner-bundle>"
    with pytest.raises(PosexportError, match="and not for the pipeline translation_en_to_de"):
        posexport.pipeline(opened("bert-ner"), "translation_en_to_de")
    pipelines = [each for task in TASKS.values() for each in task.pipelines]
    assert {each.name for each in pipelines if each.takes == "text"} == {
        "text-classification",
        "token-classification",
        "question-answering",
        "fill-mask",
        "feature-extraction",
        "text-generation",
        "text2text-generation",
        "zero-shot-classification",
        "zero-shot-token-classification",
        "summarization",
        "translation",
    }
    for task in TASKS.values():
        assert len({(each.name, each.reads) for each in task.pipelines}) == len(task.pipelines)


def test_blanks_before_punctuation():
    assert cleaned_up("it is n't , he 's here ! we 've ' em ?") == "it isn't, he's here! we've'em?"


def test_spans_are_the_likeliest_pairs():
    start, end = np.array([0.1, 0.7, 0.2]), np.array([0.6, 0.1, 0.3])
    everywhere = np.ones(3, bool)
    assert [each[:2] for each in spans(start, end, 2, 5, everywhere)] == [(1, 2), (1, 1)]
    assert spans(start, end, 1, 1, everywhere)[0][:2] == (1, 1)
    # as in the library, what is not allowed is left out behind the choice of the likeliest
    assert [each[:2] for each in spans(start, end, 9, 5, np.array([True, True, False]))][:2] == [(1, 1), (0, 0)]


@pytest.mark.parametrize(
    ("kind", "around"),
    # as of transformers 4.57.6: the source's code is 7, the end token 2
    [("MBartTokenizerFast", ([], [2, 7])), ("MBart50Tokenizer", ([7], [2])), ("NllbTokenizerFast", ([7], [2]))],
)
def test_codes_of_languages_stand_where_tokenizers_put_them(kind, around):
    class Files:
        tokenizer_config: ClassVar[dict[str, str]] = {"tokenizer_class": kind}

        def special_token(self, name: str) -> str:
            return "</s>"

    ids = {"en_XX": 7, "de_DE": 9, "</s>": 2}
    files: Any = Files()
    assert source_tokens(files, ids.get, "en_XX", "de_DE") == around
    assert target_token(files, ids.get, "de_DE") == 9
    with pytest.raises(PosexportError, match="many languages; give src_lang and tgt_lang"):
        source_tokens(files, ids.get, "en_XX", None)
    with pytest.raises(PosexportError, match="has no token xx for src_lang='xx'"):
        source_tokens(files, ids.get, "xx", "de_DE")


def test_of_overlapping_entities_the_longest_stays():
    def entity(start: int, end: int, score: float) -> dict[str, Any]:
        return {"start": start, "end": end, "score": score}

    entities = [entity(7, 9, 0.4), entity(0, 3, 0.5), entity(1, 6, 0.3), entity(7, 9, 0.6)]
    assert without_overlaps(entities) == [entity(1, 6, 0.3), entity(7, 9, 0.6)]


def ask(name: str, *inputs: Any, task: str | None = None, **options: Any) -> tuple[str, Callable[[Session], Any]]:
    return name, lambda session: posexport.pipeline(session, task)(*inputs, **options)


LONG = "the river " * 60


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (ask("bert-classes", "x", topk=1), "no option topk; did you mean top_k"),
        (ask("bert-classes", "x", task="text-clasification"), "did you mean text-classification"),
        (
            ask("bert-classes", "x", task="fill-mask"),
            "is for sequence-classification, and not for the pipeline fill-mask",
        ),
        (ask("bert-classes", 3), "input 0 must be a text, or a pair as .*got 3"),
        (ask("bert-classes", LONG), r"has \d+ tokens, .*at most 70.*truncation=True"),
        (ask("bert-classes", "a", truncation="some"), "longest_first.*got 'some'"),
        (ask("bert-classes", "a", top_k=0), "top_k must be at least 1, got 0"),
        (ask("bert-classes", "a", function_to_apply="cube"), "must be one of sigmoid"),
        (ask("bert-classes", "\ud800"), "not Unicode"),
        (
            ask("bert-classes", "x", task="zero-shot-classification"),
            "candidate_labels must be a list of texts, got None",
        ),
        (
            ask("bert-classes", "x", ["a"], task="zero-shot-classification", hypothesis_template="No"),
            "has no {} for the label",
        ),
        (ask("bert-classes", "", ["a"], task="zero-shot-classification"), "must be a text that is not empty"),
        (
            ask("bert-classes", "x", 5, task="zero-shot-classification"),
            "candidate_labels must be a list of texts, got 5",
        ),
        (
            ask("bert-classes", "x", ["a"], task="zero-shot-classification", hypothesis_template="{x}"),
            "has braces other than one",
        ),
        (ask("bert-ner", "x", aggregation_strategy="most"), "aggregation_strategy must be one of none, simple"),
        (ask("bert-ner", "x", stride=3), "stride joins the entities.*another strategy"),
        (
            ask("bert-ner", LONG, stride=64, aggregation_strategy="first"),
            "cannot cut to 64 tokens .longest_first. with a stride of 64",
        ),
        (ask("bert-ner", ["x"], is_split_into_words=True, stride=1), "stride joins"),
        (ask("bert-ner", [["x"]]), "input 0 must be a text .lists of words: is_split_into_words., got list"),
        (ask("bert-mask", "nothing"), r"'nothing'\) has no \[MASK\]"),
        (ask("bert-mask", "[MASK]", top_k=0), "top_k must be at least 1"),
        (ask("bert-mask", "[MASK]", tokenizer_kwargs={"trunc": 1}), "the tokenizer takes no trunc here"),
        (ask("bert-mask", "[MASK]", targets=[]), "name no token of the vocabulary"),
        pytest.param(
            ask("bert-features", "x", truncation=True, tokenize_kwargs={"truncation": True}),
            "truncation is given twice",
            marks=pytest.mark.all,
        ),
        (ask("roberta-qa", {"question": "Who?"}), "example 0 has no context"),
        (ask("roberta-qa", {"question": "", "context": "x"}), "example 0 has no question"),
        (ask("roberta-qa", "Who?"), "example 0 must be"),
        (ask("roberta-qa", "Who?", "x", max_answer_len=0), "max_answer_len must be at least 1, got 0"),
        (ask("roberta-qa", "Who?", "x", doc_stride=90), r"doc_stride .90. is larger than max_seq_len .64."),
        (ask("gpt2", ""), "input 0 has no tokens"),
        (ask("gpt2", 5), "input 0 must be a text, or a list of messages"),
        (ask("gpt2", [{"role": "user", "content": "x"}, {"role": "user"}]), "message 1 must have a role and content"),
        (ask("gpt2", "x", max_new_token=5), "did you mean max_new_tokens"),
        (ask("gpt2", "x", handle_long_generation="cut"), "handle_long_generation must be None or 'hole'"),
        pytest.param(ask("t5", "x", stop_sequence=""), "has no tokens", marks=pytest.mark.all),
        pytest.param(ask("t5", ""), "input 0 must be a text that is not empty", marks=pytest.mark.all),
    ],
)
def test_bad_input_is_refused_in_a_sentence(opened, case, said):
    name, call = case
    with pytest.raises(PosexportError, match=said):
        call(opened(name))


@pytest.mark.parametrize("model", ["bert-classes", "bert-mask"])
def test_the_command_says_how_to_truncate(opened, model):
    arguments = ["run", opened(model).directory, "--text", "[MASK] " + LONG]
    assert "shorten it or give --truncate to use its first ones" in command(*arguments).stderr
    assert command(*arguments, "--truncate").returncode == 0


def test_the_order_of_transformers_is_understood(opened, tmp_path):
    session = opened("bert-classes")
    wanted = posexport.pipeline(session, "text-classification")("a cat")
    assert posexport.pipeline("sentiment-analysis", str(session.directory))("a cat") == wanted
    assert posexport.pipeline("text-classification", session.directory)("a cat") == wanted
    assert posexport.pipeline("text-classification", session)("a cat") == wanted
    with pytest.raises(PosexportError, match=r"no bundle '.*nothing' for the task fill-mask; give pipeline.bundle"):
        posexport.pipeline("fill-mask", str(tmp_path / "nothing"))
    with pytest.raises(PosexportError, match=r"task must be the name of a task, got .*Path"):
        posexport.pipeline(session, tmp_path)


def test_an_iterable_without_a_length_is_read_lazily(opened, monkeypatch):
    monkeypatch.setattr("posexport.run.pipelines.pipeline.is_torch_dataset", lambda inputs: isinstance(inputs, set))
    classify = posexport.pipeline(opened("bert-classes"))
    assert list(classify({"a cat"})) == classify("a cat")


def test_a_context_is_refused_where_no_task_reads_it(opened):
    refused = command("run", str(opened("bert-mask").directory), "--text", "[MASK]", "--context", "x")
    assert (refused.returncode, "--context is for question-answering" in refused.stderr) == (2, True)


def test_a_session_is_open_already(opened):
    with pytest.raises(PosexportError, match="give provider, threads and the like"):
        posexport.pipeline(opened("bert-classes"), threads=2)


def test_a_chat_needs_a_template(opened, tmp_path):
    bundle = shutil.copytree(opened("gpt2").directory, tmp_path / "plain")
    stated = json.loads((bundle / "tokenizer_config.json").read_text())
    del stated["chat_template"]
    (bundle / "tokenizer_config.json").write_text(json.dumps(stated))
    with pytest.raises(PosexportError, match="has no chat template; give prompts as texts"):
        posexport.pipeline(bundle, check=False)(CHAT)


def test_a_bundle_without_a_task_says_what_it_is_for(tmp_path):
    with pytest.raises(PosexportError, match=r"for feature-extraction has no pipeline; use session\.run"):
        posexport.pipeline(write_bundle(tmp_path / "b", texts=True))


def test_run_prints_the_answer(opened):
    session = opened("bert-classes")
    words = ["run", str(session.directory), "--text", "I live in Paris.", "--text", "x"]
    done = command(*words, "--json", "--top-k", "2")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["inputs"] == ["I live in Paris.", "x"]
    assert equal(document["answers"], posexport.pipeline(session)(document["inputs"], top_k=2))
    lines = command(*words).stdout.splitlines()
    assert [lines[0], lines[2], lines[3]] == ["--- I live in Paris.", "", "--- x"]
    assert lines[1].split()[1] == document["answers"][0][0]["label"]
    assert list(json.loads(command(*words, "--tensors", "--json").stdout)["outputs"]) == ["logits"]
    refused = command(*words, "--task", "text-classification", "--only", "logits")
    assert (refused.returncode, "about the answer of a task" in refused.stderr) == (2, True)
    for more, said in (
        (["--image", "x.png"], "takes texts; leave out --image"),
        (["--option", "top_k"], "--option top_k has no value; give KEY=VALUE"),
    ):
        refused = command(*words, *more)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
