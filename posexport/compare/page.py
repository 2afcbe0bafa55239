"""One HTML file with all of a comparison: the table, the pictures, what was asked. It needs nothing beside itself."""

import base64
from functools import cache
from typing import TYPE_CHECKING

from posexport.compare import tasks
from posexport.compare.charts import against_latency, against_length, places, task_colours
from posexport.compare.comparison_table import ratio, shown, to_csv
from posexport.compare.records import Cell, Document, Row

if TYPE_CHECKING:
    from jinja2 import Template

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Position encodings compared: {{ setup.steps }} steps</title>
<style>
body { font-family: sans-serif; max-width: 75em; margin: 1em auto; padding: 0 1em; color: #222; line-height: 1.4; }
.verdict { padding: .5em .8em; border-left: .4em solid #00825f; background: #e6f4ef; }
.verdict.untrained { border-color: #d55e00; background: #fdeee3; color: #8a3c00; font-weight: bold; }
.box { overflow: auto; max-height: 85vh; border: 1px solid #ccc; }
table { border-collapse: separate; border-spacing: 0; font-size: 85%; }
th, td { padding: .25em .5em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; background: #fff; }
thead th { background: #f0f0f0; position: sticky; top: 0; z-index: 2; }
tr > :first-child { position: sticky; left: 0; z-index: 1; text-align: left; border-right: 1px solid #ccc; }
thead tr > :first-child { z-index: 3; }
th button { font: inherit; border: 0; background: none; padding: 0; cursor: pointer;
  text-decoration: underline dotted; }
td.limit { color: #767676; }
svg { width: 100%; height: auto; display: block; }
.small, .large { display: grid; gap: .5em 1em; }
.small { grid-template-columns: repeat(auto-fill, minmax(9.5em, 1fr)); }
.large { grid-template-columns: repeat(auto-fill, minmax(min(100%, 26em), 1fr)); }
.key span { display: inline-block; margin-right: 1em; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .3em; }
</style>
</head>
<body>
<h1>Position encodings compared</h1>
<p class="verdict{{ '' if learned else ' untrained' }}">
{%- if learned -%}
{{ setup.steps }} steps: {{ learned | length }} of {{ measured | length }} encodings answer a question better than
guessing.
{%- else -%}
{{ setup.steps }} steps: not trained. No encoding answers a question better than guessing; give more --steps.
{%- endif %}</p>
<p>Accuracy by task and length; <em>limit</em>: the graph refuses that length, its table of positions ends. Darker green
is further above guessing. A heading sorts by its column. <a download="compare.csv" href="{{ csv }}">Download as
CSV</a></p>
<div class="box">
<table id="figures">
<thead><tr>{% for head in heads %}<th><button>{{ head }}</button></th>{% endfor %}</tr></thead>
<tbody>
{% for line in lines -%}
<tr>{% for cell in line -%}
{% set tag = "td" if loop.index0 else "th" -%}
<{{ tag }}{% if cell.name %} class="{{ cell.name }}"{% endif %} data-key="{{ cell.key }}"
{%- if cell.colour %} style="background: {{ cell.colour }}"{% endif %}>{{ cell.words }}</{{ tag }}>
{%- endfor %}</tr>
{% endfor -%}
</tbody>
</table>
</div>
<p>Parameters: all, and the encoding's own. Latency: median of {{ setup.timed_runs }} calls with {{ setup.timed_rows }}
rows of {{ setup.length }} tokens, one thread, in turn with <code>nope</code>'s in the same process; <code>nope</code>
itself is 1.00 by definition.
{%- if noise is not none %} Two sessions of <code>nope</code> differed by {{ noise }}: smaller differences say nothing.
{%- endif %} Memory: what the peak of a fresh process grows by in the same call.</p>
{% if others -%}
<ul>
{% for row in others %}<li>{{ row.encoding }}: {{ row.status }}, {{ row.reason }}</li>
{% endfor %}</ul>
{% endif -%}
<h2>Accuracy against length</h2>
<p class="key">{% for name, colour in task_key %}
<span><i style="background: {{ colour }}"></i>{{ name }}</span>{% endfor %}
<span>dashed: guessing</span><span>limit: the table of positions ends</span></p>
<div class="small">
{% for picture in by_length %}{{ picture | safe }}
{% endfor %}</div>
<h2>Accuracy against latency</h2>
<p class="key">{% for name, colour in place_key %}
<span><i style="background: {{ colour }}"></i>{{ name }}</span>{% endfor %}
</p>
<div class="large">
{% for picture in by_latency %}{{ picture | safe }}
{% endfor %}</div>
<h2>What is asked</h2>
<p>Every encoding is in the same small encoder: {{ setup.layers }} layers, width {{ setup.hidden }},
{{ setup.heads }} heads. It was trained for {{ setup.steps }} steps of {{ setup.rows }} rows of {{ setup.length }}
tokens, the same for all (seed {{ setup.seed }}), exported to ONNX and asked on ONNX Runtime. What an encoding has not
learned here it may learn in more steps: this is how fast it learns, and how far it reaches.</p>
<p>A row begins with a start token. Behind it come, in an order drawn at random, one marker, {{ pairs }} pairs of tokens
and letters of an alphabet of {{ letters }}, every letter equally often. Longer rows have more letters, and the marker
and the pairs are anywhere in them. Without positions no question can be answered better than by guessing.</p>
<ul>
{% for task in tasks %}<li><b>{{ task.name }}</b>: {{ task.question }}? {{ task.answers }} answers, guessing:
{{ shown(task.chance) }}</li>
{% endfor %}</ul>
<p>{% for name, version in setup.tools.items() %}{{ name }} {{ version }}{{ ", " if not loop.last }}{% endfor %}</p>
<script>
document.querySelectorAll("#figures th button").forEach((button, column) => {
  let up = column === 0;
  button.addEventListener("click", () => {
    const body = document.querySelector("#figures tbody"), key = row => row.children[column].dataset.key;
    const order = (a, b) => column === 0 ? key(a).localeCompare(key(b)) : Number(key(a)) - Number(key(b));
    const rows = [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a));
    up = !up;
    body.append(...rows);
  });
});
</script>
</body>
</html>
"""


def page(document: Document) -> bytes:
    """The page as a file's bytes."""
    accuracies = [f"{task.name} {length}" for task in document.tasks for length in document.lengths]
    measured = [row for row in document.rows if row.status == "measured"]
    text = _template().render(
        setup=document.setup,
        tasks=document.tasks,
        learned=document.learned,
        measured=measured,
        others=[row for row in document.rows if row.status != "measured"],
        heads=["encoding", *accuracies, "parameters", "own", "kB", "latency ms", "to nope", "memory MB", "to nope"],
        lines=[_line(document, row) for row in measured],
        csv=f"data:text/csv;base64,{base64.b64encode(to_csv(document)).decode()}",
        noise=None if document.noise is None else shown(document.noise),
        by_length=against_length(document),
        by_latency=[against_latency(document, length) for length in document.lengths],
        task_key=task_colours(document),
        place_key=places(document),
        pairs=tasks.PAIRS,
        letters=tasks.LETTERS,
        shown=shown,
    )
    return text.encode()


@cache
def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined

    return Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE)


Line = dict[str, object]


def _line(document: Document, row: Row) -> list[Line]:
    """The cells of a row: what is written, what it is sorted by."""
    cells: list[Line] = [{"words": row.encoding, "key": row.encoding, "name": "", "colour": ""}]
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
    return cells


def _accuracy(cell: Cell, chance: float) -> Line:
    """White where it is no better than guessing, green where it is always right."""
    if isinstance(cell, str):
        return {"words": cell, "key": -1, "name": "limit", "colour": ""}
    better = max(0.0, (cell - chance) / (1 - chance))
    return {"words": shown(cell), "key": cell, "name": "", "colour": f"rgba(0, 158, 115, {0.75 * better:.2f})"}


def _number(number: float | None, words: str) -> Line:
    return {"words": words, "key": -1 if number is None else number, "name": "", "colour": ""}
