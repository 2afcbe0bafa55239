"""A suite's results as tables of docs/."""

from collections.abc import Callable, Sequence

from ci.lab.bench_suites.curves import curve, exponent, is_curve, megabytes, milliseconds
from ci.lab.bench_suites.reasons import Notes, reason
from posexport.inspect.bench.records import Document, Figure, Result

#: a row that is no model, for a bound that none can undercut
READING = "reading weights and cache once"
_NOT_VALID = " \\*"
#: in place of a figure of a point that is not valid, and of a candidate that a run did not have
_NO_FIGURE, _NOT_MEASURED = "—", "not measured"
BASELINE = "baseline without positions (`nope`)"


def tables(document: Document) -> str:
    """The document's table, why cells have no figure, what it was measured on, and why points are not valid.

    Times and memory of points that are not valid are left out; who fails or is wrong there is not. Processor time is
    measured where a machine has other load: points have their noise below the table.
    """
    results, notes = document.results, Notes()
    if document.clock == "wall":
        results = [result.quiet for result in results]
    if is_curve(results):
        parts = [_by_length(results, notes), *_exponents(results)]
    elif document.suite == "paper":
        parts = [_ratios(results, notes)]
    elif document.suite == "lowerings":
        parts = [_alternatives(results, notes)]
    elif document.suite == "states":
        parts = [_comparison(results, notes, _step)]
    elif document.suite == "ways":
        parts = [_comparison(results, notes, call=_with_error)]
    else:
        parts = [_comparison(results, notes)]
    explained = ["\\\n".join(notes.lines)] if notes.lines else []
    return "\n\n".join([*parts, *explained, _conditions(document)])


def _ratios(results: Sequence[Result], notes: Notes) -> str:
    """Time relative to the baseline by length; what the graph is, and what the export took."""
    heads = [_head(result, _point(result)) for result in results]
    rows = []
    for figure in results[0].figures:
        name, baseline = figure.candidate, figure.candidate == results[0].baseline
        cells = [_of(result, name, _milliseconds if baseline else _ratio, notes) for result in results]
        export = (
            f"{figure.export_seconds:.0f} s, {(figure.export_peak or 0) / 1e6:.0f} MB" if figure.export_seconds else ""
        )
        label = f"`{name.removeprefix('encoder-')}`{', baseline without positions' if baseline else ''}"
        rows.append([label, *cells, str(figure.nodes or ""), export])
    return _table(["", *heads, "nodes", "export, no proof"], rows)


def _comparison(
    results: Sequence[Result],
    notes: Notes,
    step: Callable[[Figure], str] | None = None,
    call: Callable[[Figure], str] | None = None,
) -> str:
    """Milliseconds and ratios of everyone, a column a point; the quickest right answer is bold, the baseline apart.

    ``step``: what a cell of a decode step shows, ``call`` what others do; by default milliseconds and ratios.
    """
    several = len({result.model for result in results}) > 1
    heads = [
        _head(result, f"{result.model.removeprefix('bert-')}, {_point(result)}" if several else result.point.text)
        for result in results
    ]
    names = list(dict.fromkeys(_label(result, f.candidate) for result in results for f in result.figures))
    quickest = [_quickest(result) for result in results]

    def cell(result: Result, name: str) -> str:
        shown = (step if result.point.past else call) or _both

        def marked(figure: Figure) -> str:
            return f"**{shown(figure)}**" if any(figure is each for each in quickest) else shown(figure)

        figures = {_label(result, figure.candidate): figure for figure in result.figures}
        return _shown(figures[name], marked, notes) if name in figures else _NOT_MEASURED

    rows = [[name, *(cell(result, name) for result in results)] for name in names]
    return _table(["ms (ratio)", *heads], rows)


def _quickest(result: Result) -> Figure | None:
    models = [f for f in result.figures if f.candidate not in (result.baseline, READING)]
    timed = [f for f in models if f.ms is not None and not f.wrong]
    # by the ratio: milliseconds of two rows are of different minutes
    return min(timed, key=lambda f: f.to_baseline or f.ms or 0, default=None)


def _label(result: Result, name: str) -> str:
    """Of a row; the baselines of several models share one."""
    if name != result.baseline:
        return name
    return BASELINE if "nope" in name else f"baseline, {name}"


def _alternatives(results: Sequence[Result], notes: Notes) -> str:
    """A row a model and length: milliseconds of the baseline, what the others take relative to it."""
    ways = list(dict.fromkeys(figure.candidate.split()[-1] for result in results for figure in result.figures))
    rows = []
    for result in results:
        source = result.baseline.split()[0]
        cells = [
            _of(result, result.baseline, _milliseconds, notes),
            *(_of(result, f"{source} {way}", _ratio, notes) for way in ways[1:]),
        ]
        rows.append([_head(result, f"{source.removeprefix('encoder-')}, {_point(result)}"), *cells])
    return _table(["two layers", *ways], rows)


def _by_length(results: Sequence[Result], notes: Notes) -> str:
    """One layer: a row a length; time, ratio, memory above inputs and outputs."""
    names = list(dict.fromkeys(figure.candidate for result in results for figure in result.figures))

    def cell(figure: Figure) -> str:
        memory = figure.growth if figure.above is None else figure.above
        return _both(figure) + ("" if memory is None else f", {memory / 1e6:.0f} MB")

    rows = [
        [_head(result, str(result.point.new)), *(_of(result, name, cell, notes) for name in names)]
        for result in results
    ]
    return _table(["length: ms (ratio), memory", *names], rows)


def _exponents(results: Sequence[Result]) -> list[str]:
    """One sentence: how time and memory of what reaches the longest length grow there."""
    longest = max(result.point.new for result in results)
    clauses = []
    for name in dict.fromkeys(figure.candidate for result in results for figure in result.figures):
        time, memory = curve(results, name, milliseconds), curve(results, name, megabytes)
        powers = exponent(time), exponent(memory)
        if powers[0] is not None and powers[1] is not None and time[-1][0] == memory[-1][0] == longest:
            clauses.append(f"{name}: time with length^{powers[0]:.1f}, memory with length^{powers[1]:.1f}")
    return [f"Growth over the last two doublings: {'; '.join(clauses)}."] if clauses else []


def _conditions(document: Document) -> str:
    where = document.machine
    # the environment of a plug-in imports its own onnxruntime, and lists that of the repository's, onnxruntime-gpu, too
    versions = sorted((k, v) for k, v in document.versions.items() if k.startswith("onnxruntime"))
    runtime = f"ONNX Runtime {versions[0][1]}, " if versions else ""
    sentences = (
        f"{where.cpu}, {document.threads or where.cores} threads{', processor time' * (document.clock == 'cpu')}, "
        f"{document.provider}, float32, "
        f"{document.rounds} rounds; {runtime}commit {document.commit}, {document.created[:10]}; "
        f"{document.seconds / 60:.0f} min in all."
    )
    noisy = [f"{_where(document, result)}: {result.reason}" for result in document.results if not result.valid]
    if noisy:
        sentences += f" \\* not valid: {'; '.join(noisy)}."
    return sentences + _environments(document)


def _environments(document: Document) -> str:
    """Versions that third-party exporters ran with, each environment's in brackets."""
    by_environment: dict[str, list[str]] = {}
    for key, version in document.versions.items():
        environment, between, library = key.partition(": ")
        if between:
            by_environment.setdefault(environment, []).append(f"{library} {version}")
    environments = [f"{name} ({', '.join(libraries)})" for name, libraries in by_environment.items()]
    return f" Environments of third-party exporters: {'; '.join(environments)}." if environments else ""


def _where(document: Document, result: Result) -> str:
    several = len({result.model for result in document.results}) > 1
    return f"{result.model}, {result.point.text}" if several else result.point.text


def _point(result: Result) -> str:
    return result.point.text.removeprefix("length ")


def _head(result: Result, text: str) -> str:
    return text if result.valid else text + _NOT_VALID


def _of(result: Result, name: str, cell: Callable[[Figure], str], notes: Notes) -> str:
    cells = (_shown(figure, cell, notes) for figure in result.figures if figure.candidate == name)
    return next(cells, _NOT_MEASURED)


def _shown(figure: Figure, cell: Callable[[Figure], str], notes: Notes) -> str:
    """The cell's figures, or what is there instead of them, with the number of the note that says why."""
    why = reason(figure)
    if why is None:
        return _NO_FIGURE if figure.ms is None else cell(figure)
    return notes.cell("fails" if figure.failed is not None else "WRONG" if figure.wrong else _NOT_MEASURED, why)


def _milliseconds(figure: Figure) -> str:
    return f"{figure.ms:.{0 if (figure.ms or 0) >= 100 else 1}f} ms"


def _ratio(figure: Figure) -> str:
    return "" if figure.to_baseline is None else f"{figure.to_baseline:.2f}"


def _both(figure: Figure) -> str:
    ratio = "" if figure.to_baseline is None else f" ({figure.to_baseline:.2f})"
    return _milliseconds(figure).removesuffix(" ms") + ratio


def _step(figure: Figure) -> str:
    """A decode step, with the weights that it reads."""
    return _both(figure) + (f", {figure.reads / 1e6:.0f} MB" if figure.reads else "")


def _with_error(figure: Figure) -> str:
    """A call, with its largest error relative to the first candidate's largest value."""
    return _both(figure) + (f", {figure.difference:.0e}" if figure.difference is not None else "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
