"""A KV cache in small graphs: rows of what is computed from the number of tokens, and content that is sliced.

The truth is the traced graph itself, of every row alone; test_insert_cache.py has decoders as modules.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from posexport.graph.passes.cache.insert import insert_cache
from tests.graph.passes.test_insert_cache import Cached, opened
from tests.text_graphs import graph, matrices
from tests.tolerances import agree

TOKENS, WIDTH, VOCABULARY = 13, 4, 7
#: of rows that are padded on the left
LENGTHS = (TOKENS, 8, 3)
NUMBERS: dict[str, Any] = {
    **{name: np.array([number]) for number, name in enumerate(("zero", "one", "two", "three", "four"))},
    "far": np.array([2**63 - 1]),
    "start": np.array(0),
    "step": np.array(1),
    "flat": np.array([-1, 4]),
}
GRAPH = """
<ir_version: 10, opset_import: ["": 18, "posexport": 1]>
decoder (int64[batch_size, sequence_length] ids, int64[1] zero, int64[1] one, int64[1] two, int64[1] three,
         int64[1] four, int64[1] far, int64 start, int64 step, int64[2] flat, float[7, 4] embeddings,
         float[700, 4] table, float[4, 7] head) => (float[LOGITS] result)
<float[batch_size, sequence_length, 4] y, float[batch_size, 1, sequence_length, 4] context>
{
    count = Shape <start = 1, end = 2> (ids)
    number = Squeeze (count, zero)
    at = Range (start, number, step)
    x = Gather (embeddings, ids)
    POSITIONS
    y = Add (x, rows)
    q = Unsqueeze (y, one)
    context = posexport.Attention <spec_causal = 1, scale = 0.5, lowest = -1.7e38, heads = 1, kv_heads = 1>
        (q, q, q, at, at)
    out = Squeeze (context, one)
    CONTENT
    result = MatMul (end, head)
}
"""
#: what is added to the embeddings of T tokens, and how often the graph with a cache gathers: what follows from
#: positions is computed for the new tokens alone, so that embeddings and tables remain, and what no rule knows
POSITIONS: dict[str, tuple[str, int]] = {
    "first rows of a table": ("rows = Slice (table, zero, count, zero)", 2),
    "rows from the fourth on": ("stop = Add (count, three) rows = Slice (table, three, stop, zero)", 2),
    "every second row": ("stop = Mul (count, two) rows = Slice (table, zero, stop, zero, two)", 2),
    "a running sum of the shape of the ids": (
        "shape = Shape (ids) twos = ConstantOfShape <value = int64[1] {2}> (shape)"
        " counted = CumSum (twos, step) rows = Gather (table, counted)",
        3,
    ),
    "positions in every channel": (
        "column = Unsqueeze (at, one) shape = Concat <axis = 0> (count, four)"
        " wide = Expand (column, shape) rows = Cast <to = 1> (wide)",
        1,
    ),
}
PLAIN, _ = POSITIONS["first rows of a table"]
#: what becomes of the tokens before the head, and the shape of the logits
CONTENT: dict[str, tuple[str, str]] = {
    "up to their number": ("end = Slice (out, zero, count, one)", "batch_size, sequence_length, 7"),
    "the last by their number": ("before = Sub (count, one) end = Slice (out, before, far, one)", "batch_size, 1, 7"),
    "tokens of all rows": ("end = Reshape (out, flat)", "tokens, 7"),
}


def decoder(positions: str, content: str, logits: str) -> ir.Model:
    """A graph with one head of attention between ``positions`` and ``content``."""
    draw = matrices(0)
    text = GRAPH.replace("POSITIONS", positions).replace("CONTENT", content).replace("LOGITS", logits)
    weights: dict[str, Any] = {
        "embeddings": draw(VOCABULARY, WIDTH),
        "table": draw(700, WIDTH),
        "head": draw(WIDTH, VOCABULARY),
    }
    return ShapeInferencePass()(graph(text, **weights, **NUMBERS)).model


def check(
    positions: str, content: str = "end = Identity (out)", logits: str = "batch_size, sequence_length, 7"
) -> list[str]:
    """Compare a graph with a cache with the traced one; returns the operators of the former."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (3, TOKENS))
    model, session = (decoder(positions, content, logits) for _ in range(2))
    run = opened(session).run
    last = [
        [run(None, {"ids": row[None, :end]})[0].reshape(-1, VOCABULARY)[-1] for end in range(1, TOKENS + 1)]
        for row in ids
    ]
    truth = np.stack(last)
    insert_cache(model, "ids", None, 300)
    operators = [node.op_type for node in model.graph]
    cached, whole = Cached(model), np.ones_like(ids)
    for parts in ([TOKENS], [1] * TOKENS, [3, 5, 1, 4]):
        agree(cached.in_parts(ids, whole, parts), truth, "model in float32", np.float32)
    # padded on the left
    padded, kept = np.zeros_like(ids), np.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        padded[row, TOKENS - length :], kept[row, TOKENS - length :] = ids[row, :length], 1
    got = cached.in_parts(padded, kept, [6, 1, 6])
    for row, length in enumerate(LENGTHS):
        agree(got[row, TOKENS - length :], truth[row, :length], "model in float32", np.float32)
    return operators


@pytest.mark.parametrize("name", POSITIONS)
def test_rows_of_positions_are_those_of_the_new_tokens(name: str) -> None:
    positions, gathers = POSITIONS[name]
    assert check(positions).count("Gather") == gathers


@pytest.mark.parametrize("name", CONTENT)
def test_tokens_that_are_sliced_or_reshaped(name: str) -> None:
    check(PLAIN, *CONTENT[name])
