"""The findings of an audit, each with its piece of the graph as a drawing. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import onnx_ir as ir

from posexport.graph.queries import sizes
from posexport.inspect.audit.audit import audit
from posexport.inspect.audit.finding import Finding, Findings, Recognised
from posexport.inspect.audit.reading.read import read_model
from posexport.inspect.audit.rule import name_of

#: neighbours on each side that are drawn
_MOST = 4
#: a box, the space between boxes, and the letters that fit in a box
_WIDTH, _HEIGHT, _GAP, _LETTERS = 122, 34, 22, 16


@dataclass(frozen=True)
class Shown:
    """A finding and the drawing of its first node; empty where its file does not have the node."""

    finding: Finding
    drawing: str


@dataclass(frozen=True)
class Audited:
    """Findings, what the graphs have, and how many rules looked."""

    shown: list[Shown]
    recognised: Sequence[Recognised]
    rules: int


def audited(directory: Path) -> Audited:
    """All rules that read files, over the graphs of a bundle.

    Raises:
        PosexportError: a graph that cannot be read.
    """
    return shown(audit(directory), directory)


def shown(findings: Findings, folder: Path) -> Audited:
    """Findings with drawings of the graphs in ``folder``."""
    graphs = {file: read_model(folder / file).graph for file in {finding.file for finding in findings}}
    drawn = [Shown(finding, _drawing(graphs[finding.file], finding)) for finding in findings]
    return Audited(drawn, findings.recognised, len(findings.rules))


def _drawing(graph: ir.Graph, finding: Finding) -> str:
    node = next((node for node in graph.all_nodes() if finding.nodes and name_of(node) == finding.nodes[0]), None)
    return "" if node is None else neighbourhood(node)


def neighbourhood(node: ir.Node) -> str:
    """A node between what it reads and what reads it, from left to right."""
    before = [_box(value) for value in node.inputs if value is not None]
    after = [(f"{user.op_type}", name_of(user)) for value in node.outputs for user, _ in value.uses()]
    after += [("output", value.name or "") for value in node.outputs if value.is_graph_output()]
    columns = [_cut(before), [(node.op_type, name_of(node))], _cut(list(dict.fromkeys(after)))]
    rows = max(len(column) for column in columns)
    height = rows * _HEIGHT + (rows - 1) * _GAP / 2 + 4
    width = 3 * _WIDTH + 2 * _GAP + 4
    parts: list[str] = []
    middles: list[list[tuple[float, float]]] = []
    for number, column in enumerate(columns):
        x = 2 + number * (_WIDTH + _GAP)
        top = (height - len(column) * _HEIGHT - (len(column) - 1) * _GAP / 2) / 2
        middles.append([])
        for level, (what, name) in enumerate(column):
            y = top + level * (_HEIGHT + _GAP / 2)
            middles[-1].append((x, y + _HEIGHT / 2))
            css = "box here" if number == 1 else "box"
            parts.append(
                f'<rect class="{css}" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="3"/>'
                f'<text class="ink" x="{x + 6}" y="{y + 14}">{escape(_short(what))}</text>'
                f'<text x="{x + 6}" y="{y + 27}">{escape(_short(name))}<title>{escape(name)}</title></text>'
            )
    (here,) = middles[1]
    for left, middle in middles[0]:
        parts.append(f'<path class="arrow" d="M{left + _WIDTH} {middle}L{here[0] - 1} {here[1]}"/>')
    for left, middle in middles[2]:
        parts.append(f'<path class="arrow" d="M{here[0] + _WIDTH} {here[1]}L{left - 1} {middle}"/>')
    label = f"{node.op_type} {name_of(node)} between {len(before)} inputs and {len(after)} readers"
    return (
        f'<svg class="drawing" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _box(value: ir.Value) -> tuple[str, str]:
    """The box of a value: the operator that computes it, a weight with its sizes, or an input of the graph."""
    producer = value.producer()
    if producer is not None:
        return producer.op_type, value.name or ""
    known = sizes(value)
    shape = "" if known is None else f" [{', '.join(map(str, known))}]"
    return f"{'input' if value.const_value is None else 'weight'}{shape}", value.name or ""


def _cut(boxes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """At most `_MOST` boxes; the last says how many are left out."""
    return boxes if len(boxes) <= _MOST else [*boxes[: _MOST - 1], (f"{len(boxes) - _MOST + 1} more", "")]


def _short(text: str) -> str:
    """The end of a name that is too long, which differs more than its beginning."""
    return text if len(text) <= _LETTERS else f"\N{HORIZONTAL ELLIPSIS}{text[1 - _LETTERS :]}"
