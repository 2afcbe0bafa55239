"""Writes tiny checkpoints and what sentence-transformers and transformers answer: ``make.py DIRECTORY [NAME...]``.

With ``--golden`` before the names a few texts are asked: so tests/embedders and tests/rerankers are made.

Weights are drawn with a seed, large enough that positions matter, and saved by the libraries. Below DIRECTORY/NAME:
``model``, the checkpoint; ``calls.json``, the task and what is asked; ``answers.npz``, what the library answers, by the
call's number.
"""

import json
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import late_interaction
import numpy as np
import rerankers
import sentence_embedders
import torch
from corpus import randomise, texts

LIBRARIES = ("sentence-transformers", "transformers", "torch", "tokenizers")


#: of the corpus, the texts of golden answers: 1 to about 300 words
GOLDEN = [0, *range(3, 40, 4)]


def main(work: Path, names: list[str]) -> None:
    golden = "--golden" in names
    names = [name for name in names if name != "--golden"]
    torch.set_num_threads(1)
    made: dict[str, Callable[..., Any]] = {**sentence_embedders.MODELS, **late_interaction.MODELS, **rerankers.MODELS}
    corpus = texts()
    asked = [text for text in map(corpus.__getitem__, GOLDEN) if len(text) < 1500] if golden else corpus
    (work / "texts.json").write_text(json.dumps(asked, indent=0))
    (work / "versions.json").write_text(json.dumps({name: version(name) for name in LIBRARIES}))
    for name in names or made:
        target = work / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        calls, answers = made[name](target / "model", corpus, asked, randomise)
        (target / "calls.json").write_text(json.dumps({"task": rerankers.TASKS.get(name), "calls": calls}))
        for page in (target / "model").glob("README.md"):
            page.unlink()
        np.savez_compressed(target / "answers.npz", **{str(i): answer for i, answer in enumerate(answers)})
        print(name, len(calls), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
