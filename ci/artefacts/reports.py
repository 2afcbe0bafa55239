"""Writes docs/examples: reports of an embedder, a decoder with a KV cache and a detector, all tiny, for the pages.

Usage: python ci/artefacts/reports.py
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import posexport  # noqa: E402
from ci.through.tiny import make, table  # noqa: E402

PAGES = ROOT / "docs" / "examples"
TEXTS = ["The cat sleeps on the warm stove.", "A kitten is napping by the oven."]


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "yolos", table()["yolos"])
        sources = {
            "embedder": ROOT / "tests" / "embedders" / "bert-mean" / "model",
            "decoder": ROOT / "tests" / "golden" / "gpt2-lmheadmodel",
            "detector": folder / "yolos",
        }
        for kind, source in sources.items():
            posexport.convert(source, folder / kind, threads=1)
            texts = TEXTS if kind == "embedder" else []
            posexport.report(folder / kind, PAGES / f"{kind}.html", texts=texts, force=True)
            print(kind, (PAGES / f"{kind}.html").stat().st_size)


if __name__ == "__main__":
    main()
