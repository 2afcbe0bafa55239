"""Several inputs come as lists, tuples, arrays and generators, in every method of a session and in every pipeline."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from posexport.base.options.several import as_prompts
from posexport.base.tasks.registry import TASKS, pipelines_of
from posexport.errors import PosexportError
from posexport.run.audio.sounds import as_list
from posexport.run.call_forms import as_pairs
from posexport.run.generate.config import GenerationConfig
from posexport.run.images.pictures import read_pictures
from posexport.run.load import load
from posexport.run.pages import as_pictures
from posexport.run.pipelines.pipeline import Pipeline
from posexport.run.requests import GenerationInputs
from posexport.run.session import Session
from tests.tiny_bundle import write_bundle

FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "generator": iter,
    "array": np.array,
    "objects": lambda values: np.array([*values, None], object)[:-1],
}
TEXTS = ["a cat", "dog"]
IDS = [[1, 3, 4], [1, 5, 6]]
VECTORS = [[0.5, 1.0], [2.0, 3.0]]


class CapturedError(Exception):
    """What reached the generation."""


class Generating(Session):
    """A session that shows the prompts that it would continue."""

    @property
    def _continuation(self) -> Any:
        return self

    def events(self, inputs: GenerationInputs, _: GenerationConfig, **__: Any) -> Any:
        raise CapturedError([inputs.prompts, inputs.decoder_prompts])


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    opened = load(write_bundle(tmp_path_factory.mktemp("bundles") / "tiny", texts=True))
    opened.__class__ = Generating
    return opened


def continued(call: Callable[[], Any]) -> Any:
    with pytest.raises(CapturedError) as caught:
        call()
    return caught.value.args[0]


#: by method: a call with several inputs in a form, and these inputs
CALLS: dict[str, tuple[Callable[[Session, Any], Any], list[Any]]] = {
    "run": (lambda session, ids: session.run({"input_ids": ids})["last_hidden_state"].tolist(), IDS),
    "tokenize": (lambda session, texts: session.tokenize(texts)["input_ids"].tolist(), TEXTS),
    "run_texts": (lambda session, texts: session.run_texts(texts)["sentence_embedding"].tolist(), TEXTS),
    "generate": (lambda session, ids: continued(lambda: session.generate(ids, decoder_prompts=IDS)), IDS),
    "stream": (lambda session, ids: continued(lambda: session.stream(ids)), IDS[0]),
    "encode": (lambda session, texts: np.asarray(session.encode(texts)).tolist(), TEXTS),
    "encode_query": (lambda session, texts: np.asarray(session.encode_query(texts)).tolist(), TEXTS),
    "encode_document": (lambda session, texts: np.asarray(session.encode_document(texts)).tolist(), TEXTS),
    "similarity": (lambda session, vectors: session.similarity(vectors, VECTORS).tolist(), VECTORS),
    "similarity_pairwise": (lambda session, vectors: session.similarity_pairwise(vectors, VECTORS).tolist(), VECTORS),
    # what these read their inputs with; a bundle for each would have to be converted
    "predict": (lambda _, pairs: as_pairs(pairs), [("a", "b"), ("c", "d")]),
    "rank": (lambda _, pictures: as_pictures(pictures), ["a.png", "b.png"]),
    "prepare": (lambda _, sounds: as_list(sounds), ["a.wav", "b.wav"]),
}
#: methods that take no several inputs (one chat, nothing), `run` of one input, and one of BGE-M3
#: (tests/checkpoints/test_bge_m3.py)
ALONE = {"chat", "compute_score", "embed_tokens", "render_chat", "self_check"}


def test_every_method_is_asked() -> None:
    public = {name for name, _ in inspect.getmembers(Session, inspect.isfunction) if not name.startswith("_")}
    assert public == set(CALLS) | ALONE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", CALLS)
def test_methods_of_the_session(session: Session, method: str, form: str) -> None:
    call, inputs = CALLS[method]
    if form == "objects" and method in {"run", "similarity", "similarity_pairwise"}:
        with pytest.raises(PosexportError, match=r"vectors must be numbers|got an array of shape \[2\]"):
            call(session, FORMS[form](inputs))
        return
    assert call(session, FORMS[form](inputs)) == call(session, inputs)


@pytest.mark.parametrize(
    "prompts",
    [np.array(IDS), [np.array(ids) for ids in IDS], [iter(ids) for ids in IDS], tuple(map(tuple, IDS))],
    ids=["array", "arrays", "generators", "tuples"],
)
def test_prompts_of_ids(session: Session, prompts: Any) -> None:
    assert continued(lambda: session.generate(prompts)) == [IDS, None]


@pytest.mark.parametrize("prompts", [5, np.array(5), None])
def test_what_is_no_list_of_prompts(prompts: Any) -> None:
    with pytest.raises(PosexportError, match="prompts must be a list of texts or of lists of ids, got "):
        as_prompts(prompts)


def test_pictures() -> None:
    pictures = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    for form in (pictures, [*pictures], (*pictures,), iter(pictures), [iter(pictures)]):
        read = read_pictures(form, rgb=False, layout=None)
        assert [picture.tolist() for picture in read] == np.moveaxis(pictures, -1, 1).tolist()


def test_one_sound_of_numbers() -> None:
    for form in ([0.5, 0.25], (0.5, 0.25), iter([0.5, 0.25])):
        assert as_list(form) == [[0.5, 0.25]] or as_list(form) == [(0.5, 0.25)]


def pipelines() -> list[type[Pipeline]]:
    places = {tuple(each.implementation.split(":")): None for task in TASKS for each in pipelines_of(task)}
    return [getattr(importlib.import_module(f"posexport.run.pipelines.{module}"), name) for module, name in places]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", pipelines(), ids=lambda kind: kind.__name__)
def test_pipelines(monkeypatch: pytest.MonkeyPatch, kind: type[Pipeline], form: str) -> None:
    """Every input has an answer, in the order of the inputs."""
    pipeline = object.__new__(kind)
    pipeline._batch_size, pipeline._options = None, {}
    monkeypatch.setattr(kind, "_checked", lambda _, options: options)
    monkeypatch.setattr(kind, "answers", lambda _, items, *__, **___: [[item] for item in items])
    named = {"text": FORMS[form](TEXTS)} if "images" in inspect.signature(kind.__call__).parameters else {}
    answers = pipeline(**named) if named else pipeline(FORMS[form](TEXTS))
    assert [*answers] in ([[text] for text in TEXTS], TEXTS)


def test_pictures_in_one_array_are_several_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = next(each for each in pipelines() if each.__name__ == "ImageClassification")
    pipeline = object.__new__(kind)
    pipeline._batch_size, pipeline._options = None, {}
    monkeypatch.setattr(kind, "answers", lambda _, items, *__, **___: [item.shape for item in items])
    assert pipeline(np.zeros((2, 4, 5, 3))) == [(4, 5, 3)] * 2
