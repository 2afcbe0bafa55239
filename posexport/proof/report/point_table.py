"""The table for the terminal: length against padding, worst error, PyTorch's error, verdict."""

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posexport.proof.grid.point import PADDINGS
from posexport.proof.report.points import Point
from posexport.proof.report.points import lines as range_lines
from posexport.proof.report.record import Record

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {"FAIL": "bold red", "skipped": "yellow", "pass": "green"}
#: words at which a sentence is a verdict, and their colours
_VERDICTS = {"FAIL:": "bold red", "FAILED:": "bold red", "not proven:": "yellow", "skipped:": "yellow", "ok:": "green"}
_VERDICTS |= {"passed:": "bold green"}
#: columns of a terminal that has room for borders
_BORDERS = 100


def table(proof: Record, width: int = _BORDERS) -> "Table":
    """One row a length; a cell is the worst error over batches and outputs with that padding.

    The columns on the right are about the output that came nearest to its tolerance; PyTorch's is its largest. They
    are the only columns where ``width`` has no room for the others.
    """
    from rich.box import ASCII2, SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    paddings = [padding for padding in PADDINGS if any(point.padding == padding for point in proof.points)]
    grid = Table(title=title(proof), title_justify="left", box=ASCII2)
    if width < _BORDERS:
        # 9 columns for each padding, 2 of them space, and 48 for the others
        paddings = paddings if 48 + 9 * len(paddings) <= width else []
        grid.box, grid.show_edge, grid.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
    grid.add_column(_size_heading(proof.points), justify="right")
    for name in (*(_HEADINGS[padding] for padding in paddings), "worst", f"PyTorch {proof.precision}", "tolerance"):
        grid.add_column(name, justify="right")
    grid.add_column("verdict")
    for key in sorted({(point.length, point.image or (), point.sizes) for point in proof.points}):
        here = [point for point in proof.points if (point.length, point.image or (), point.sizes) == key]
        cells = [_cell([point for point in here if point.padding == padding]) for padding in paddings]
        worst = max((p for p in here if p.tolerance is not None), key=lambda p: p.ratio, default=None)
        numbers = [""] * 3
        if worst is not None:
            numbers = [_cell([worst]), _number(worst.worst_baseline_error), _number(worst.tolerance)]
        verdict = _verdict(here)
        grid.add_row(here[0].point.size, *cells, *numbers, Text(verdict, style=_COLOURS.get(verdict, "")))
    return grid


def _size_heading(points: Sequence[Point]) -> str:
    if any(point.image for point in points):
        return "image"
    return "size" if any(point.length_estimated for point in points) else "length"


def title(proof: Record) -> str:
    """What was checked, in one line."""
    what = "parity, stored sample" if proof.scope == "sample" else "parity"
    keeps = ", the module keeps state" if proof.stateful else ""
    how = " in emulation" if proof.emulated else ""
    return (
        f"{what} ({proof.precision}{how}, {proof.provider}{keeps}): max |y - y64| / max |y64|, y64 by PyTorch float64"
    )


def remarks(proof: Record) -> list[str]:
    """Lines below the table: what its columns are, medians, invariants, skipped points, what failed."""
    tolerance = "; the tolerance is yours" if proof.tolerance is not None else ", from which the tolerance follows"
    ragged = any(point.padding.startswith("ragged") for point in proof.points)
    lines = [
        _LEGEND.format(proof.precision) + tolerance + ("; ragged: rows padded by different amounts" if ragged else "")
    ]
    lines += [_EMULATED.format(proof.precision, proof.precision)] if proof.emulated else []
    for output in dict.fromkeys(item.output for item in proof.medians):
        # of the groups of points, the one that comes nearest to its limit
        worst = max((item for item in proof.medians if item.output == output), key=lambda item: item.ratio)
        lines.append(f"{'FAIL' if worst.verdict == 'fail' else 'ok'}: {worst.describe()}")
    for name in dict.fromkeys(item.name for item in proof.invariants):
        here = [item for item in proof.invariants if item.name == name]
        verdicts = {item.verdict for item in here}
        verdict = "FAIL" if "fail" in verdicts else "ok" if "pass" in verdicts else "skipped"
        notes = dict.fromkeys(item.note for item in here if item.note and verdict != "ok")
        at = ", ".join(str(item.length) for item in here)
        lines.append(f"{verdict}: {name} (length {at})" + (f": {'; '.join(notes)}" if notes else ""))
    lines += [f"skipped: {point.where}: {point.note}" for point in proof.points if point.verdict == "skipped"]
    redrawn = {point.note: point.where for point in reversed(proof.points) if point.verdict == "pass" and point.note}
    lines += [f"ok: {where}: {note}" for note, where in redrawn.items()]
    lines += [f"not proven: {branch.branch}: {branch.note}" for branch in proof.unreached]
    if proof.shipped:
        failed = sum(point.verdict == "fail" for point in proof.shipped)
        lines.append(
            f"{'FAIL' if failed else 'ok'}: the graph itself on {proof.provider}, at {len(proof.shipped)} outputs of "
            f"points of the stored sample{f': {failed} failed' if failed else ''}"
        )
    lines += [
        f"costs: {output} has a mean cosine of {cost.cosine:.4f} with float32's, at least {cost.least_cosine:.4f}"
        for output, cost in proof.agreement.items()
    ]
    lines += range_lines(proof.range, proof.overflows)
    lines += [f"FAIL: {line}" for line in (*proof.wrong_provider, *proof.findings)]
    lines.append(("passed: " if proof.passed else "FAILED: ") + proof.describe())
    return lines


def to_text(proof: Record, *, width: int | None = None, colour: bool = False) -> str:
    """Table and remarks as text; of a terminal with ``width`` columns no line is wider."""
    # a file takes all columns: the one for `few` is seldom there
    columns = width or _BORDERS + 12 * any(point.padding == "few" for point in proof.points)
    lines = [line.rstrip() for line in _printed(table(proof, columns), columns, colour=colour).splitlines()]
    return "\n".join([*lines, *fitted(remarks(proof), width, colour=colour)]) + "\n"


def fitted(sentences: Sequence[str], width: int | None, *, colour: bool) -> list[str]:
    """Sentences with their verdicts in colour, broken at words where they are wider than ``width``."""
    lines = []
    for sentence in sentences:
        parts = textwrap.wrap(sentence, width, break_long_words=False, break_on_hyphens=False) if width else [sentence]
        verdict = next((word for word in _VERDICTS if colour and sentence.startswith(word)), None)
        if verdict is not None and parts[0].startswith(verdict):
            parts[0] = _styled(verdict, _VERDICTS[verdict]) + parts[0][len(verdict) :]
        lines += parts
    return lines


def _styled(text: str, style: str) -> str:
    from rich.style import Style

    return Style.parse(style).render(text)


def _printed(grid: "Table", width: int, *, colour: bool) -> str:
    from rich.console import Console

    out = io.StringIO()
    color_system: Any = "standard" if colour else None
    Console(file=out, width=width, color_system=color_system, force_terminal=colour, legacy_windows=False).print(grid)
    return out.getvalue()


_LEGEND = "padded tokens are not compared; PyTorch {0}: the error of PyTorch in {0} itself"
#: what an emulated proof does not show
_EMULATED = (
    "in emulation: computed in float32, every operator's output rounded to {}; what one kernel rounds inside, and the "
    "order of its sums, only a run on a provider with kernels of {} shows"
)
_HEADINGS = {
    "none": "no padding",
    "right": "right",
    "left": "left",
    "ragged": "ragged",
    "ragged-right": "ragged",
    "few": "one token",
}


def _cell(points: Sequence[Point]) -> str:
    if not points:
        return "-"
    values = [point for point in points if point.tolerance is not None]
    if values:
        return _number(max(values, key=lambda p: p.ratio).error)
    verdicts = {point.verdict for point in points}
    return next(word for word in ("fail", "skipped", "rejected", "pass") if word in verdicts)


def _verdict(points: Sequence[Point]) -> str:
    verdicts = {point.verdict for point in points}
    if "fail" in verdicts:
        return "FAIL"
    return next((word for word in ("pass", "rejected") if word in verdicts), "skipped")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.1e}"
