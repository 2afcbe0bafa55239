"""One HTML file with all of a comparison: what was asked, the pictures, the table. It needs nothing beside itself."""

import html

from posexport.compare import tasks
from posexport.compare.charts import against_latency, against_length
from posexport.compare.records import Cell, Document, Row
from posexport.compare.table import ratio, shown

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Position encodings compared</title>
<style>
body {{ font-family: sans-serif; max-width: 75em; margin: 1em auto; padding: 0 1em; color: #222; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-size: 85%; }}
th, td {{ padding: .2em .5em; text-align: right; border-bottom: 1px solid #ddd; }}
th {{ background: #f4f4f4; position: sticky; top: 0; }}
th button {{ font: inherit; border: 0; background: none; padding: 0; cursor: pointer;
  text-decoration: underline dotted; }}
td:first-child, th:first-child, td.text {{ text-align: left; }}
td.limit {{ color: #999; }}
</style>
</head>
<body>
<h1>Position encodings compared</h1>
<p>Every encoding stands in the same small encoder: {layers} layers, width {hidden}, {heads} heads. It was trained for
{steps} steps of {rows} rows of {length} tokens, the same for all (seed {seed}), exported to ONNX and asked on ONNX
Runtime. What an encoding has not learned here it may learn in more steps: this is how fast it learns, and how far it
reaches.</p>
<h2>What is asked</h2>
<p>A row begins with a start token. Behind it stand, in an order drawn at random, one marker, {pairs} pairs of tokens
and letters of an alphabet of {letters}, every letter equally often. Longer rows have more letters, and the marker and
the pairs stand anywhere in them. Without positions no question can be answered better than by guessing.</p>
<ul>
{questions}
</ul>
<h2>Accuracy against length</h2>
{by_length}
<h2>Accuracy against latency</h2>
{by_latency}
<h2>All figures</h2>
<p>Accuracy by task and length; <em>limit</em>: the graph refuses that length, its table of positions ends. Parameters:
all, and the encoding's own. Latency: median of {runs} calls with {timed} rows of {length} tokens, one thread, in turn
with <code>nope</code>'s in the same process. Memory: what the peak of a fresh process grows by in the same call.
A heading sorts by its column.</p>
<table id="figures">
<thead><tr>{heads_html}</tr></thead>
<tbody>
{body}
</tbody>
</table>
{others}
<p>{tools}</p>
<script>
document.querySelectorAll("#figures th button").forEach((button, column) => {{
  let up = column === 0;
  button.addEventListener("click", () => {{
    const body = document.querySelector("#figures tbody"), key = row => row.children[column].dataset.key;
    const order = (a, b) => column === 0 ? key(a).localeCompare(key(b)) : Number(key(a)) - Number(key(b));
    const rows = [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a));
    up = !up;
    body.append(...rows);
  }});
}});
</script>
</body>
</html>
"""


def page(document: Document) -> bytes:
    """The page as a file's bytes."""
    setup = document.setup
    measured = [row for row in document.rows if row.status == "measured"]
    accuracies = [f"{task.name} {length}" for task in document.tasks for length in document.lengths]
    heads = ["encoding", *accuracies, "parameters", "own", "kB", "latency ms", "to nope", "memory MB", "to nope"]
    questions = [
        f"<li><b>{task.name}</b>: {html.escape(task.question)}? {task.answers} answers, "
        f"guessing: {shown(task.chance)}</li>"
        for task in document.tasks
    ]
    others = [
        f"<li>{html.escape(row.encoding)}: {row.status}, {html.escape(row.reason)}</li>"
        for row in document.rows
        if row.status != "measured"
    ]
    tools = ", ".join(f"{name} {version}" for name, version in setup.tools.items())
    text = _PAGE.format(
        layers=setup.layers,
        hidden=setup.hidden,
        heads=setup.heads,
        steps=setup.steps,
        rows=setup.rows,
        length=setup.length,
        seed=setup.seed,
        pairs=tasks.PAIRS,
        letters=tasks.LETTERS,
        questions="\n".join(questions),
        by_length=against_length(document),
        by_latency="\n".join(against_latency(document, length) for length in document.lengths),
        runs=setup.timed_runs,
        timed=setup.timed_rows,
        heads_html="".join(f"<th><button>{head}</button></th>" for head in heads),
        body="\n".join(_line(document, row) for row in measured),
        others=f"<ul>\n{chr(10).join(others)}\n</ul>" if others else "",
        tools=html.escape(tools),
    )
    return text.encode()


def _line(document: Document, row: Row) -> str:
    cells = [f'<td data-key="{html.escape(row.encoding)}">{html.escape(row.encoding)}</td>']
    for task in document.tasks:
        cells += [_accuracy(row.accuracy[task.name][str(length)], task.chance) for length in document.lengths]
    megabytes = None if row.memory_bytes is None else row.memory_bytes / 1e6
    for number, shape in (
        (row.parameters, ",.0f"),
        (row.own_parameters, ",.0f"),
        ((row.file_bytes or 0) / 1e3, ",.0f"),
        (row.latency_ms, ".1f"),
    ):
        cells.append(_number(number, "" if number is None else format(number, shape)))
    cells.append(_number(row.latency_to_nope, ratio(row.latency_to_nope)))
    cells.append(_number(megabytes, "-" if megabytes is None else f"{megabytes:.1f}"))
    cells.append(_number(row.memory_to_nope, ratio(row.memory_to_nope)))
    return f"<tr>{''.join(cells)}</tr>"


def _accuracy(cell: Cell, chance: float) -> str:
    """White where it is no better than guessing, green where it is always right."""
    if isinstance(cell, str):
        return f'<td class="limit" data-key="-1">{cell}</td>'
    better = max(0.0, (cell - chance) / (1 - chance))
    return f'<td data-key="{cell}" style="background: rgba(0, 158, 115, {0.75 * better:.2f})">{shown(cell)}</td>'


def _number(number: float | None, words: str) -> str:
    return f'<td data-key="{-1 if number is None else number}">{words}</td>'
