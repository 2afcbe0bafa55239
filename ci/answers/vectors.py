"""Vectors, scores and rankings: `posexport.Session` against sentence-transformers 6.

``python -m ci.answers.vectors --golden``: writes tests/answers/vectors from the checkpoints of tests/embedders and
tests/rerankers.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import posexport
from ci.answers import vector_calls
from ci.answers.case import Case
from ci.answers.vector_calls import Call

TESTS = Path(__file__).parents[2] / "tests"
STORED = TESTS / "answers" / "vectors"
#: a CrossEncoder's prompts
PROMPTS = {"prompts": {"first": "ba ce: ", "other": "Search. "}, "default_prompt_name": "first"}


def embedder(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def cross_encoder(folder: Path) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(folder), device="cpu")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A checkpoint of the tests: its folder, how the library opens it, what is asked, what is changed in a copy."""

    folder: str
    opener: Callable[[Path], Any]
    calls: Mapping[str, Call]
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


SCORING = vector_calls.SCORES | vector_calls.RANKING
PLAIN = {name: vector_calls.VECTORS[name] for name in ("texts", "one text", "prompt")}
GOLDEN: dict[str, Stored] = {
    "embedder": Stored(folder="embedders/embeddinggemma", opener=embedder, calls=vector_calls.VECTORS),
    "reranker": Stored(
        folder="rerankers/cross-encoder",
        opener=cross_encoder,
        calls=SCORING | vector_calls.WITH_PROMPTS,
        changes={"config_sentence_transformers.json": PROMPTS},
    ),
    "bidirectional": Stored(
        folder="embedders/qwen3-lasttoken",
        opener=embedder,
        calls=PLAIN,
        changes={"config.json": {"is_causal": False}},
    ),
}


def stored_model(name: str, work: Path) -> Path:
    """The folder of a golden checkpoint, a copy in ``work`` where something is changed."""
    stored = GOLDEN[name]
    source = TESTS / stored.folder / "model"
    if not stored.changes:
        return source
    shutil.copytree(source, work / name)
    for file, values in stored.changes.items():
        path = work / name / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return work / name


def texts_of(name: str) -> list[str]:
    """The texts that are asked of a golden checkpoint, short ones."""
    texts: list[str] = json.loads((TESTS / GOLDEN[name].folder / ".." / "texts.json").read_text())
    return [text[:300] for text in texts]


def asked(model: Any, theirs: Any, calls: Mapping[str, Call], texts: list[str], part: str) -> Iterator[Case]:
    """A row for each call."""
    library = f"sentence-transformers {version('sentence-transformers')}"
    for name, call in calls.items():
        right, got = (vector_calls.as_arrays(call(each, texts)) for each in (theirs, model))
        wrong = vector_calls.difference(got, right)
        yield Case(
            part=part, asked=name, library=library, ours=wrong or "the same", theirs=shape(right), equal=not wrong
        )


def shape(arrays: list[np.ndarray]) -> str:
    return ", ".join(f"{each.dtype} {list(each.shape)}" for each in arrays[:4])


def cases(work: Path) -> Iterator[Case]:
    """Every call on every checkpoint."""
    for name, stored in GOLDEN.items():
        folder = stored_model(name, work)
        posexport.convert(str(folder), work / f"{name}.bundle", target="cpu", verify=False)
        session, theirs = posexport.load(work / f"{name}.bundle"), stored.opener(folder)
        yield from asked(session, theirs, stored.calls, texts_of(name), f"vectors: {name}")


def golden(into: Path) -> None:
    """Writes the library's answers."""
    into.mkdir(parents=True, exist_ok=True)
    for name, stored in GOLDEN.items():
        with tempfile.TemporaryDirectory() as work:
            model = stored.opener(stored_model(name, Path(work)))
            answers = {call: vector_calls.as_arrays(ask(model, texts_of(name))) for call, ask in stored.calls.items()}
        arrays = {f"{call}.{number}": each for call, found in answers.items() for number, each in enumerate(found)}
        np.savez_compressed(into / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    versions = {name: version(name) for name in ("sentence-transformers", "transformers", "torch")}
    (into / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__" and "--golden" in sys.argv:
    golden(STORED)
