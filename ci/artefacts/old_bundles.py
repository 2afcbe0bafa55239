"""Writes tests/run/bundle/versions/VERSION: one small bundle of each kind, which every later version must load.

Usage: python ci/artefacts/old_bundles.py, before the tag of a version that changes the format
"""

from pathlib import Path
from typing import Any

import posexport
from posexport.version import VERSION

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "run" / "bundle" / "versions" / VERSION
GOLDEN = ROOT / "tests" / "golden"
EMBEDDER = ROOT / "tests" / "embedders" / "bert-mean" / "model"
SMALL = {"layers": 1, "hidden": 8, "heads": 2, "feedforward": 8, "vocab": 11}
#: enough for a weight to be quantized
WIDER = SMALL | {"hidden": 16, "vocab": 257}
LENGTHS = [1, 3]
BUNDLES: dict[str, tuple[str | Path, dict[str, Any]]] = {
    "encoder": ("encoder-t5", {"settings": SMALL, "lengths": LENGTHS}),
    "decoder": ("decoder-rope", {"settings": SMALL, "lengths": LENGTHS}),
    "static-cache": ("decoder-alibi", {"settings": SMALL, "lengths": LENGTHS, "cache": "static"}),
    "encoder-decoder": ("encoder-decoder-t5", {"settings": SMALL, "lengths": LENGTHS}),
    "int8": ("encoder-rope", {"settings": WIDER, "lengths": LENGTHS, "precision": "int8", "target": "cpu"}),
    "variants": (EMBEDDER, {"lengths": LENGTHS, "precision": ["fp32", "int8"], "layout": "transformers.js"}),
    "image": (GOLDEN / "vit-forimageclassification", {}),
    "sound": (GOLDEN / "wav2vec2-conformer-rotary", {"lengths": [20]}),
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (source, options) in BUNDLES.items():
        try:
            done = posexport.convert(source, FOLDER / name, threads=1, force=True, **options)
            print(name, done.verdict, sum(p.stat().st_size for p in (FOLDER / name).rglob("*") if p.is_file()))
        except posexport.PosexportError as err:
            print(name, err)


if __name__ == "__main__":
    main()
