"""Recognises tables by distance that a module reads by padding and reshaping ("skewing"), for scores and values.

VITS, Piper and Glow-TTS pad a table [2w + 1, D] with zeros to all 2T - 1 distances (or cut it), multiply, and move the
products of row and distance to row and column by Pad and Reshape, or back. Keys more than w away add nothing. That is
Shaw's term with a clipped distance (arXiv:1803.02155) and a row of zeros on each side of the table.

The nodes between are run with small integers, for which floats are exact, at lengths around w and beyond the largest
number in them, and compared with the operator's formula.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from posexport.graph.dataflow import sources
from posexport.graph.edits import initializer
from posexport.graph.partial import Array, Subgraph, shape
from posexport.graph.passes.recognise.mask_structure import may_differ_beyond
from posexport.graph.queries import FOLDED_FROM, is_weight, names_of, sizes

#: the largest window that is examined: sums over all pairs are computed
_WIDEST = 256
#: tokens that are examined at least: more than the channels of a head, constants of reshapes that could be lengths
_LEAST = 131
_BATCH = 2


def of_scores(
    model: ir.Model, added: Sequence[tuple[ir.Value, float]], q: ir.Value, roots: Collection[ir.Value], scale: float
) -> ir.Value | None:
    """The table E [2w + 3, D], zeros at both ends, so that ``added`` to the scores is q E^T by clipped distance.

    None where there is none.

    Args:
        added: values with the factor that they are scaled by afterwards, as q k^T is by ``scale``.
        q: [B, H, T, D], or [B * H, T, D].
        roots: queries and keys before transposes and scales, [.., T, D].
    """
    tables = {table for value, _ in added for table in _tables(value, roots, (sizes(q) or (0,))[-1])}
    if len(tables) != 1:
        return None
    (table,) = tables
    subgraph = Subgraph(model, [*(value for value, _ in added), q], [*dict.fromkeys(roots), table])
    tokens = (sizes(q) or (0, 0))[-2]
    if not isinstance(tokens, str) or not _is_decidable(subgraph, table):
        return None
    for arrays, lengths, rows in _samples(subgraph, table, tokens):
        outputs = subgraph.run(arrays, lengths)
        if outputs is None:
            return None
        *sums, queries = (x.astype(np.float64) for x in outputs)
        total = sum(x * by for x, (_, by) in zip(sums, added, strict=True))
        expected = np.einsum("...id,ijd->...ij", queries, rows) * scale
        if np.shape(total) != expected.shape or not np.allclose(total, expected, rtol=1e-5, atol=1e-5):
            return None
    return _with_zeros(model.graph, table)


def of_values(
    model: ir.Model, probs: ir.Value, product: ir.Value, context: ir.Value, total: ir.Value
) -> ir.Value | None:
    """The table E [2w + 3, D], zeros at both ends, so that ``total`` is ``context`` and the sum of p_ij E[j - i].

    None where there is none.

    Args:
        probs: [B, H, T, S], or [B * H, T, S].
        product: of probabilities and values; ``context`` is what it is moved to.
    """
    tables = set(_tables(total, [probs, product], (sizes(product) or (0,))[-1]))
    if len(tables) != 1:
        return None
    (table,) = tables
    subgraph = Subgraph(model, [total, context], [probs, product, table])
    tokens = (sizes(probs) or (0,))[-1]
    if not isinstance(tokens, str) or not _is_decidable(subgraph, table):
        return None
    for arrays, lengths, rows in _samples(subgraph, table, tokens):
        moved = arrays[product] + np.einsum("...ij,ijd->...id", arrays[probs], rows).astype(np.float32)
        computed, expected = subgraph.run(arrays, lengths), subgraph.run({**arrays, product: moved}, lengths)
        if computed is None or expected is None or not np.array_equal(computed[0], expected[1]):
            return None
    return _with_zeros(model.graph, table)


def _tables(value: ir.Value, stops: Collection[ir.Value], width: int | str) -> Iterator[ir.Value]:
    """Weights [2w + 1, width] or [1, 2w + 1, width] that ``value`` is computed from."""
    for source in sources(value, stops=stops):
        *lead, rows, size = (0, *(sizes(source) or (0, 0)))
        fits = lead in ([0], [0, 1]) and size == width and isinstance(rows, int) and rows % 2 == 1
        if fits and is_weight(source, len(lead) + 1) and source.dtype == ir.DataType.FLOAT:
            yield source


def _window(table: ir.Value) -> int:
    return int((sizes(table) or (0, 0))[-2]) // 2


def _longest(table: ir.Value) -> int:
    return max(2 * _window(table) + 9, _LEAST)


def _is_decidable(subgraph: Subgraph, table: ir.Value) -> bool:
    """Whether the subgraph can be run, and what it computes for `_longest` tokens holds for more of them, too."""
    is_float = all(value.dtype == ir.DataType.FLOAT and sizes(value) for value in subgraph.free)
    is_run = is_float and subgraph.is_closed and _window(table) <= _WIDEST
    return is_run and not may_differ_beyond(subgraph.model.graph, _longest(table))


def _samples(
    subgraph: Subgraph, table: ir.Value, tokens: str
) -> Iterator[tuple[dict[ir.Value, Array], dict[str, int], Array]]:
    """Arrays for all free values of a subgraph, sizes of named axes, and the table's rows [T, T, D] by j - i."""
    window, rng = _window(table), np.random.default_rng(0)
    names = {size for value in subgraph.free for size in sizes(value) or () if isinstance(size, str)} - {tokens}
    for length in sorted({1, 2, max(window, 1), window + 1, window + 2, 2 * window + 1, _longest(table)}):
        lengths = {name: math.prod(_sizes_of_batch(name)) for name in names}
        lengths |= {name.rpartition("*")[-1]: _BATCH for name in names} | {tokens: length}
        arrays = {value: rng.integers(-4, 5, shape(value, lengths)).astype(np.float32) for value in subgraph.free}
        padded = np.pad(arrays[table].reshape(2 * window + 1, -1), ((1, 1), (0, 0)))
        distance = np.arange(length) - np.arange(length)[:, None]
        yield arrays, lengths, padded[np.clip(distance, -window - 1, window + 1) + window + 1]


def _sizes_of_batch(name: str) -> list[int]:
    """The factors of an axis of the batch: ``batch``, or ``5*batch`` with heads in it."""
    return [int(factor) if factor.isdigit() else _BATCH for factor in name.split("*")]


def _with_zeros(graph: ir.Graph, table: ir.Value) -> ir.Value:
    """The table with a row of zeros on each side, [2w + 3, D]."""
    assert table.const_value is not None
    rows = table.const_value.numpy().reshape(2 * _window(table) + 1, -1)
    padded = initializer(graph, f"{table.name}_with_zeros", ir.tensor(np.pad(rows, ((1, 1), (0, 0)))))
    padded.metadata_props[FOLDED_FROM] = repr(list(names_of(table)))
    return padded
