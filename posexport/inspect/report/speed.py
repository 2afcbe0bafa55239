"""Time and memory of a benchmark: a chart of each against length, and a table. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from posexport.errors import PosexportError
from posexport.inspect.bench.records import Document, Figure, Result
from posexport.inspect.pages.svg import Drawing, Scale

#: candidates that colours can tell apart
_COLOURS = 6


@dataclass(frozen=True)
class Speed:
    """A benchmark. ``rows``: one for every point and candidate; ``charts``: time and memory as markup."""

    where: str
    candidates: list[str]
    charts: list[str]
    rows: list[list[str]]


def read(path: Path) -> Document:
    """The document that ``posexport bench -o`` wrote; PosexportError for another file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Document)
    except OSError as err:
        raise PosexportError(f"cannot read {path}: {err.strerror}; give a file of posexport bench -o") from err
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
        raise PosexportError(f"{path} is not a document of posexport bench ({err}); write one with -o FILE") from err


def speed(document: Document) -> Speed:
    """The tables of a benchmark; points at which the machine was not quiet have no figures."""
    results = [result.quiet for result in document.results]
    names = list(dict.fromkeys(figure.candidate for result in results for figure in result.figures))
    charts = [
        _chart(results, names, "time of a call, ms", lambda figure: figure.ms),
        _chart(results, names, "memory above the model, MB", lambda figure: figure.above and figure.above / 1e6),
    ]
    threads = f"{document.threads or 'all'} thread{'' if document.threads == 1 else 's'}"
    where = f"{document.machine.cpu}, {threads}, {document.provider}, {document.created[:10]}"
    rows = [_line(result, figure) for result in results for figure in result.figures]
    return Speed(where, [_short(name) for name in names], [chart for chart in charts if chart], rows)


def _chart(results: Sequence[Result], names: Sequence[str], what: str, value: Callable[[Figure], float | None]) -> str:
    """Lines against the tokens of a row, for rows in batches of the first result's size; empty where nothing varies."""
    here = [result for result in results if result.point.batch == results[0].point.batch]
    past = any(result.point.past for result in here)
    lines: dict[str, list[tuple[float, float]]] = {}
    for result in here:
        for figure in result.figures:
            number = value(figure)
            if number is not None and number > 0:
                tokens = result.point.past if past else result.point.new
                lines.setdefault(figure.candidate, []).append((max(tokens, 1), number))
    points = [point for line in lines.values() for point in line]
    if len({x for x, _ in points}) < 2:
        return ""
    numbers = [y for _, y in points]
    drawing = Drawing(
        f"{what} against length",
        Scale(min(x for x, _ in points), max(x for x, _ in points), log=True),
        Scale(min(numbers) / 1.3, max(numbers) * 1.3, log=True),
        "tokens in the KV cache" if past else "length in tokens",
        what,
    )
    for number, name in enumerate(names[:_COLOURS]):
        line = sorted(lines.get(name, []))
        if line:
            drawing.line(line, f"c{number}", _short(name))
            drawing.dots([(x, y, f"{_short(name)}: {y:.3g} at {x:g}") for x, y in line], f"c{number}")
    return drawing.svg()


def _line(result: Result, figure: Figure) -> list[str]:
    why = figure.failed or figure.left_out or ("wrong output" if figure.wrong else "") or (result.reason or "")
    return [
        result.point.text,
        _short(figure.candidate),
        "" if figure.ms is None else f"{figure.ms:.3g}",
        "" if figure.to_baseline is None else f"{figure.to_baseline:.2f}",
        "" if figure.above is None else f"{figure.above / 1e6:.1f}",
        why,
    ]


def _short(name: str) -> str:
    """A candidate without the folders of its path."""
    return name.rstrip("/").rpartition("/")[2] or name
