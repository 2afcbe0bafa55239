"""Pipelines: what ``transformers.pipeline`` answers, task by task, and `posexport.pipeline`.

In an environment with transformers 4 only the tasks that version 5 no longer has are asked. ``golden`` writes the
answers that tests compare with: ``python -m ci.answers.pipelines FOLDER``.
"""

import copy
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ci.answers.case import Case
from ci.answers.seeded import store
from ci.answers.tiny_models import CORPUS, MODELS

LIMIT = 1e-5
#: tasks that left in version 5
LEFT = ("question-answering", "text2text-generation", "summarization", "translation")
LONG = " ".join(CORPUS[:4])
#: without Greek letters and digits of the corpus: what tokenizers do not know
ODD = "Ωmega 9 naïve   Straße, don't!"


@dataclass(frozen=True)
class Ask:
    """One call: of the checkpoint ``model``, the pipeline ``task`` made with ``made``, called with the rest."""

    model: str
    task: str
    inputs: Any
    options: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> str:
        options = ", ".join(f"{name}={value!r:.30}" for name, value in {**self.made, **self.options}.items())
        return f"{self.task} of {self.model}: {self.inputs!r:.30}{options and ' ' + options}"


TEXTS = ["I live in Paris.", "The engineers tested the bridge", ODD, "x"]
PAIR = {"text": CORPUS[4], "text_pair": "Mice, mostly."}
CHAT = [{"role": "user", "content": "What do cats eat?"}]
PREFILLED = [*CHAT, {"role": "assistant", "content": "Mice"}]
GREEDY = {"do_sample": False, "max_new_tokens": 7}


def asked() -> Iterator[Ask]:
    """Every call."""
    yield from _classification()
    yield from _entities()
    yield from _masks_and_features()
    yield from _questions()
    yield from _generation()


def _classification() -> Iterator[Ask]:
    for model in ("bert-classes", "distilbert-multi", "roberta-one", "deberta-nli", "bart-nli"):
        yield Ask(model, "text-classification", "I live in Paris.")
        yield Ask(model, "text-classification", TEXTS)
        yield Ask(model, "text-classification", TEXTS[:2], {"top_k": 2}, {"batch_size": 2})
        yield Ask(model, "text-classification", PAIR, {"top_k": None})
    yield Ask("bert-classes", "sentiment-analysis", LONG, {"truncation": True})
    yield Ask("bert-classes", "text-classification", LONG, {"truncation": True, "max_length": 11})
    yield Ask("bert-classes", "text-classification", [PAIR, PAIR], {"function_to_apply": "sigmoid"})
    yield Ask("bert-classes", "text-classification", "x", {"function_to_apply": "none"}, {"top_k": 3})
    labels = ["sports", "politics", "the old harbour"]
    for model in ("deberta-nli", "bart-nli"):
        yield Ask(model, "zero-shot-classification", CORPUS[3], {"candidate_labels": labels})
        yield Ask(model, "zero-shot-classification", TEXTS[:2], {"candidate_labels": "a, b,c", "multi_label": True})
        more = {"candidate_labels": ["music"], "hypothesis_template": "It is {}!"}
        yield Ask(model, "zero-shot-classification", LONG if model == "deberta-nli" else ODD, more)


def _entities() -> Iterator[Ask]:
    for model in ("bert-ner", "roberta-ner", "deberta-ner"):
        yield Ask(model, "ner", TEXTS)
        for strategy in ("simple", "first", "average", "max"):
            yield Ask(model, "token-classification", CORPUS[2], {"aggregation_strategy": strategy})
        yield Ask(model, "ner", LONG, {"aggregation_strategy": "simple", "stride": 6})
        yield Ask(model, "ner", LONG, {"ignore_labels": [], "aggregation_strategy": "first"})
    words = CORPUS[0].split()
    yield Ask("bert-ner", "ner", words, {"is_split_into_words": True})
    yield Ask(
        "roberta-ner",
        "ner",
        [words, ["Ωmega", "Paris"]],
        {"is_split_into_words": True, "aggregation_strategy": "simple", "delimiter": "--"},
    )


def _masks_and_features() -> Iterator[Ask]:
    for model, mask in (("bert-mask", "[MASK]"), ("roberta-mask", "<mask>")):
        yield Ask(model, "fill-mask", f"Paris is the {mask} of France.")
        yield Ask(model, "fill-mask", [f"{mask} eats mice", f"naïve Ω {mask}!"], {"top_k": 3})
        yield Ask(model, "fill-mask", [f"The {mask} of {mask}."], {"top_k": 2})
        yield Ask(model, "fill-mask", f"the {mask}", {"targets": ["the", "library", "saddle"]})
        yield Ask(model, "fill-mask", f"{mask} {LONG}", {"tokenizer_kwargs": {"truncation": True}, "top_k": 1})
    for model in ("bert-features", "distilbert-features"):
        yield Ask(model, "feature-extraction", "I live in Paris.")
        yield Ask(model, "feature-extraction", ["x", ODD], {"tokenize_kwargs": {"max_length": 5}, "truncation": True})


def _questions() -> Iterator[Ask]:
    short = {"question": "Who lives in Berlin?", "context": CORPUS[0]}
    long = {"question": "Where is Clara?", "context": LONG}
    for model in ("bert-qa", "roberta-qa"):
        yield Ask(model, "question-answering", short)
        yield Ask(model, "question-answering", [short, long], {"top_k": 3})
        yield Ask(model, "question-answering", long, {"doc_stride": 10, "max_seq_len": 40})
        yield Ask(model, "question-answering", long, {"handle_impossible_answer": True, "top_k": 4})
        yield Ask(model, "question-answering", short, {"align_to_words": False, "max_answer_len": 3})


def _generation() -> Iterator[Ask]:
    for model in ("gpt2", "llama"):
        yield Ask(model, "text-generation", "The quick brown fox", GREEDY)
        yield Ask(model, "text-generation", TEXTS[:2], {**GREEDY, "return_full_text": False})
        yield Ask(model, "text-generation", CHAT, GREEDY)
        yield Ask(model, "text-generation", [CHAT, PREFILLED], GREEDY)
        yield Ask(model, "text-generation", "Paris", {**GREEDY, "num_beams": 3, "num_return_sequences": 2})
        yield Ask(model, "text-generation", "Paris", {**GREEDY, "prefix": "My name is "})
        yield Ask(model, "text-generation", "Paris", {**GREEDY, "return_tensors": True})
    yield Ask("llama", "text-generation", "My name is", {"do_sample": False})
    for model in ("t5", "bart", "marian"):
        yield Ask(model, "text2text-generation", "I live in Paris.", {"max_new_tokens": 8})
        yield Ask(model, "text2text-generation", TEXTS[:2], {"max_new_tokens": 8, "num_beams": 1})
        # 256 tokens of random weights of T5 are one text again and again, whose beams are nearly equal
        few = {"max_new_tokens": 12} if model == "t5" else {}
        yield Ask(model, "summarization", CORPUS[2], few)
        yield Ask(model, "summarization", CORPUS[:2], {"max_length": 9, "min_length": 4, **few})
        yield Ask(model, "translation_en_to_de", "the house is wonderful", few)
        yield Ask(model, "translation", "the house", {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6})


def here() -> list[Ask]:
    """The calls of tasks for which this version of transformers is the model."""
    old = version("transformers").startswith("4.")
    return [ask for ask in asked() if ask.task.startswith(LEFT) == old]


def theirs(ask: Ask, checkpoint: Path) -> Any:
    """The library's answer, as JSON has it."""
    from transformers import logging, pipeline

    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = pipeline(ask.task, model=str(checkpoint), device="cpu", **ask.made)
        # copies: the library writes into what it is given
        return plain(made(copy.deepcopy(ask.inputs), **copy.deepcopy(ask.options)))


def ours(ask: Ask, bundle: Path) -> Any:
    """Our answer."""
    import posexport

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plain(posexport.pipeline(bundle, ask.task, **ask.made)(ask.inputs, **ask.options))


def plain(value: Any) -> Any:
    """Numbers, texts, lists and dictionaries."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value.item() if hasattr(value, "item") else value


def equal(one: Any, other: Any) -> bool:
    """The same keys, texts and whole numbers; others to `LIMIT`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=LIMIT, abs_tol=LIMIT)
    return type(one) is type(other) and bool(one == other)


def rounded(value: Any) -> Any:
    """Floats with as many digits as are compared, and two more."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 7) if isinstance(value, float) else value


def cases(work: Path) -> Iterator[Case]:
    """A row for each call."""
    import posexport

    library = f"transformers {version('transformers')}"
    for ask in here():
        checkpoint, bundle = work / ask.model, work / f"{ask.model}-bundle"
        if not bundle.exists():
            MODELS[ask.model](checkpoint)
            posexport.convert(str(checkpoint), bundle, target="cpu", verify=False)
        wanted = theirs(ask, checkpoint)
        try:
            found = ours(ask, bundle)
        except Exception as err:  # noqa: BLE001  # a row that says so, and the next one
            found = f"{type(err).__name__}: {err}"
        yield Case(
            part="pipelines", asked=ask.said, library=library, ours=found, theirs=wanted, equal=equal(found, wanted)
        )


def golden(into: Path) -> None:
    """Write the library's answers and the checkpoints without their weights to ``into``."""
    into.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for ask in here():
            checkpoint = Path(work) / ask.model
            if not checkpoint.exists():
                MODELS[ask.model](checkpoint)
                store(checkpoint, into)
            rows.append({**asdict(ask), "answer": rounded(theirs(ask, checkpoint))})
    major = version("transformers").partition(".")[0]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (into / f"answers-{major}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    golden(Path(sys.argv[1]))
