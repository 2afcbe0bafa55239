"""Converts what make.py wrote by default options for the target cpu, and compares what the bundles answer.

``compare.py DIRECTORY [NAME...]``: the largest difference of every model's calls from the libraries' answers, which
must stay below 1e-5, by `posexport.Session` and, on a few texts, by ``posexport run``. Each model's result stays in its
directory (``found.json``) until make.py writes that anew; without names those that have none are compared, and
ci/results/embedders.json is written. Also measured: how far a text's answer is from that of its words backwards, so
that a model whose positions do nothing cannot pass.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import posexport

LIMIT = 1e-5
RESULTS = Path(__file__).parents[2] / "results" / "embedders.json"
#: of texts, those that the command line is asked for
FEW = slice(0, 40, 13)


def answered(session: posexport.Session, texts: list[str], call: dict[str, Any]) -> Any:
    """Vectors of the texts (of tokens: text by text), or scores of each text with the next one, or of all with one."""
    if "rank" in call:
        scores = {each["corpus_id"]: each["score"] for each in session.rank(texts[0], texts)}
        return np.array([scores[place] for place in range(len(texts))])
    if session.manifest.pair_rules is None:
        found = session.encode(texts, **call)
        return np.concatenate(found) if isinstance(found, list) else found
    pairs = list(zip(texts, [*texts[1:], texts[0]], strict=True))
    scores = session.predict(pairs, **call)
    if scores.ndim == 1:
        ranked = session.rank(texts[0], texts[1:2], **call)
        assert abs(ranked[0]["score"] - scores[0]) <= LIMIT
    return scores


def by_command(bundle: Path, texts: list[str], call: dict[str, Any]) -> Any:
    """The vectors that ``posexport run --json`` prints."""
    words = [word for text in texts for word in ("--text", text)]
    for name, value in call.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    done = subprocess.run(
        [sys.executable, "-m", "posexport", "run", str(bundle), "--json", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return np.array(json.loads(done.stdout)["outputs"]["sentence_embedding"])


def compared(directory: Path, texts: list[str]) -> dict[str, Any]:
    bundle = directory / "bundle"
    asked = json.loads((directory / "calls.json").read_text())
    conversion = posexport.convert(str(directory / "model"), bundle, target="cpu", task=asked["task"], force=True)
    session = posexport.load(bundle)
    answers = np.load(directory / "answers.npz")
    calls = asked["calls"]
    errors = []
    for index, call in enumerate(calls):
        got = answered(session, texts, call)
        assert got.shape == answers[str(index)].shape, (got.shape, answers[str(index)].shape)
        errors.append(float(np.abs(got - answers[str(index)]).max()))
    few, embeds = texts[FEW], session.manifest.task == "sentence-embedding"
    last = answers[str(len(calls) - 1)][FEW]
    # of the command line the vectors of texts are compared
    command = float(np.abs(by_command(bundle, few, calls[-1]) - last).max()) if embeds else None
    backwards = [" ".join(reversed(text.split())) for text in texts]
    reversed_answers = answered(session, backwards, calls[0])
    return {
        "task": session.manifest.task,
        "proven": conversion.good,
        "verdict": conversion.verdict,
        "calls": calls,
        "errors": errors,
        "error_of_command": command,
        "largest": float(max(np.abs(answers[str(i)]).max() for i in range(len(calls)))),
        # a text that is cut may have other tokens backwards
        "backwards_differ": float(
            np.abs(reversed_answers[: len(answers["0"])] - answers["0"][: len(reversed_answers)]).max()
        ),
    }


def good(found: dict[str, Any]) -> bool:
    # sums over tokens (SPLADE) have elements above 100, of which float32 keeps less
    right = max([*found["errors"], found["error_of_command"] or 0.0]) <= LIMIT * max(1.0, found["largest"] / 10)
    return right and found["proven"] and found["backwards_differ"] > 100 * LIMIT


def main(work: Path, names: list[str]) -> int:
    texts = json.loads((work / "texts.json").read_text())
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    found = {}
    for directory in sorted(path.parent for path in work.glob("*/calls.json")):
        kept = directory / "found.json"
        if directory.name in names or not (names or kept.exists()):
            one = {"commit": head.stdout.strip(), **compared(directory, texts)}
            kept.write_text(json.dumps(one))
            print(directory.name, "good" if good(one) else "BAD", one, flush=True)
        if kept.exists():
            found[directory.name] = json.loads(kept.read_text())
    if not names:
        lengths = [len(text.split()) for text in texts]
        record = {
            "date": datetime.now(UTC).date().isoformat(),
            "versions": json.loads((work / "versions.json").read_text()) | {"posexport": posexport.__version__},
            "texts": {"count": len(texts), "fewest_words": min(lengths), "most_words": max(lengths)},
            "limit": LIMIT,
            "models": found,
        }
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(map(good, found.values())) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
