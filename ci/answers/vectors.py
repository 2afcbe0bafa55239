"""Vectors, scores and rankings: `posexport.Session` against sentence-transformers 6.

``python -m ci.answers.vectors --golden``: writes tests/answers/vectors from the checkpoints of tests/embedders and
tests/rerankers.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
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


def prompted(source: Path, target: Path) -> Path:
    """A CrossEncoder's folder with prompts."""
    shutil.copytree(source, target)
    path = target / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | PROMPTS))
    return target


#: of the stored checkpoints: the folder, how the library opens it, what is asked, and what is changed in a copy
SCORING = vector_calls.SCORES | vector_calls.RANKING
GOLDEN: dict[str, tuple[str, Callable[[Path], Any], Mapping[str, Call], bool]] = {
    "embedder": ("embedders/embeddinggemma", embedder, vector_calls.VECTORS, False),
    "reranker": ("rerankers/cross-encoder", cross_encoder, SCORING | vector_calls.WITH_PROMPTS, True),
}


def stored_model(name: str, work: Path) -> Path:
    """The folder of a golden checkpoint, in ``work`` where something is changed."""
    folder, _, _, changed = GOLDEN[name]
    source = TESTS / folder / "model"
    return prompted(source, work / name) if changed else source


def texts_of(name: str) -> list[str]:
    """The texts that are asked of a golden checkpoint, short ones."""
    texts: list[str] = json.loads((TESTS / GOLDEN[name][0] / ".." / "texts.json").read_text())
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
    for name, (_, opener, calls, _) in GOLDEN.items():
        folder = stored_model(name, work)
        posexport.convert(str(folder), work / f"{name}.bundle", target="cpu", verify=False)
        yield from asked(
            posexport.load(work / f"{name}.bundle"), opener(folder), calls, texts_of(name), f"vectors: {name}"
        )


def golden(into: Path) -> None:
    """Writes the library's answers."""
    into.mkdir(parents=True, exist_ok=True)
    for name, (_, opener, calls, _) in GOLDEN.items():
        with tempfile.TemporaryDirectory() as work:
            model = opener(stored_model(name, Path(work)))
            answers = {call: vector_calls.as_arrays(ask(model, texts_of(name))) for call, ask in calls.items()}
        arrays = {f"{call}.{number}": each for call, found in answers.items() for number, each in enumerate(found)}
        np.savez_compressed(into / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    versions = {name: version(name) for name in ("sentence-transformers", "transformers", "torch")}
    (into / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__" and "--golden" in sys.argv:
    golden(STORED)
