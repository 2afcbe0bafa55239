"""The requests of the load test, with the rows that they must get: a fixed pool, from which clients draw."""

import random
from pathlib import Path
from typing import Any

import posexport

#: kind -> share of all requests
SHARES = {"text": 0.72, "texts": 0.15, "long text": 0.03, "ids": 0.05, "bad": 0.05}
#: of the bad ones: what is posted and which sentence answers it; ``None`` stands for a text of 1.2 million characters
BAD: list[tuple[list[Any] | dict[str, Any] | None, str]] = [
    ([], "got no texts"),
    ([1], "str"),
    ({"input_ids": [[1] * 600]}, "at most 512"),
    ({"input_ids": [[1, 10**6]]}, "input_ids holds 1000000"),
    (None, "characters"),
]
WORDS = "the cat sat on a mat while rain fell over quiet hills and rivers ran past old mills in an autumn of few leaves"


def make(bundle: Path, size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Requests: ``texts`` or ``inputs``, and the ``rows`` or the ``error`` that they earn."""
    draw, words = random.Random(seed), WORDS.split()
    session = posexport.load(bundle, threads=1)
    pool: list[dict[str, Any]] = []
    for _ in range(size):
        kind = draw.choices(list(SHARES), list(SHARES.values()))[0]
        if kind == "bad":
            given, error = draw.choices(BAD, [24, 24, 24, 24, 4])[0]
            given = ["x" * 1_200_000] if given is None else given
            pool.append({"kind": kind, "inputs" if isinstance(given, dict) else "texts": given, "error": error})
            continue
        if kind == "ids":
            ids = [[101, *(draw.randint(1000, 20000) for _ in range(draw.randint(1, 40))), 102]]
            rows = session.run({"input_ids": ids}, outputs=["sentence_embedding"])["sentence_embedding"]
            pool.append({"kind": kind, "inputs": {"input_ids": ids}, "rows": rows.tolist()})
            continue
        count = draw.randint(2, 8) if kind == "texts" else 1
        lengths = (120, 250) if kind == "long text" else (1, 40)
        texts = [" ".join(draw.choice(words) for _ in range(draw.randint(*lengths))) for _ in range(count)]
        pool.append({"kind": kind, "texts": texts, "rows": session.encode(texts).tolist()})
    return pool
