"""A term of distances alone, by blocks: computed for a chunk of queries once, and moved for every block of others.

The first `CHUNK` queries meet all the keys that stand in some chunk's way: those of the call, and as many before them
as chunks are moved by. Query 32 a + i has at key j what query i has at key j - 32 a, so that every row of a block is a
run of whole chunks of one of these rows, which one Gather copies.
"""

from posexport.lowering.blocks import BLOCK
from posexport.lowering.scores import term
from posexport.lowering.text import named
from posexport.ops.attention import AttentionKind
from posexport.ops.operator import DOMAIN, WHOLE
from posexport.ops.skew import CHUNK


def first_rows(kind: AttentionKind) -> list[str]:
    """Statements that give ``first_rows``, [H, chunks, CHUNK], from the term's own tensors, qpos and kpos."""
    assert kind.scores is not None
    # a block's term has its own name: a Scan's body may not give what its surroundings do
    rows = [line.replace("term = ", "rows_term = ") for line in term(kind, q="", qs="", qpos="rows_qpos")]
    return [
        "rows_zero = Constant<value_ints = [0]>()",
        "rows_one = Constant<value_ints = [1]>()",
        f"rows_chunk = Constant<value_ints = [{CHUNK}]>()",
        f"rows_block = Constant<value_ints = [{BLOCK}]>()",
        # keys in whole chunks, queries in whole blocks: those of `blockwise` end before or there
        *_up_to("rows_keys", "kpos", "rows_chunk"),
        *_up_to("rows_queries", "qpos", "rows_block"),
        "rows_before = Sub(rows_queries, rows_chunk)",
        "rows_first_query = Slice(qpos, rows_zero, rows_one)",
        "rows_first_key = Slice(kpos, rows_zero, rows_one)",
        "rows_from = Sub(rows_first_key, rows_before)",
        "rows_to = Add(rows_first_key, rows_keys)",
        *_counted("rows_kpos", "rows_from", "rows_to"),
        "rows_after = Add(rows_first_query, rows_chunk)",
        *_counted("rows_qpos", "rows_first_query", "rows_after"),
        *(line.replace(f"{DOMAIN}.", f"{DOMAIN}.{WHOLE}") for line in named(rows, kpos="rows_kpos")),
        "rows_heads = Shape<start = 1, end = 2>(rows_term)",
        "rows_rest = Constant<value_ints = [-1]>()",
        "rows_shape = Concat<axis = 0>(rows_heads, rows_rest, rows_chunk)",
        "first_rows = Reshape(rows_term, rows_shape)",
    ]


def places(rows: str) -> list[str]:
    """Statements that give ``places``, [block, chunks of keys], where the first block's numbers stand in ``rows``.

    In scope: ``zero``, ``one``, ``chunk``, ``block``, ``kpos_all`` and ``qpos``.
    """
    return [
        "key_chunk_total = Shape(kpos_all)",
        "key_chunk_count = Div(key_chunk_total, chunk)",
        # not Shape<start, end>: a shared bias has no known rank, and neither would what follows
        f"rows_sizes = Shape({rows})",
        "chunk_total = Gather(rows_sizes, one)",
        "row_chunks = Div(chunk_total, chunk)",
        "chunks_before = Sub(row_chunks, key_chunk_count)",
        "first_query_of_all = Slice(qpos, zero, one)",
        *_counted("query_numbers", "zero", "block"),
        "query_row = Mod(query_numbers, chunk)",
        "query_chunk = Div(query_numbers, chunk)",
        "row_begins = Mul(query_row, row_chunks)",
        "row_moved = Sub(row_begins, query_chunk)",
        "row_first = Add(row_moved, chunks_before)",
        "row_column = Unsqueeze(row_first, one)",
        *_counted("key_chunk_numbers", "zero", "key_chunk_count"),
        "places = Add(row_column, key_chunk_numbers)",
    ]


def moved(rows: str, *, qpos: str, kpos: str) -> list[str]:
    """Statements that give ``term``, [1, H, block, S], for queries at ``qpos`` and keys at ``kpos``, whole chunks."""
    return [
        f"moved_first = Slice({qpos}, zero, one)",
        "moved_by = Sub(moved_first, first_query_of_all)",
        "moved_chunks = Div(moved_by, chunk)",
        f"moved_keys = Shape({kpos})",
        "moved_key_chunks = Div(moved_keys, chunk)",
        "moved_seen = Slice(places, zero, moved_key_chunks, one)",
        "moved_places = Sub(moved_seen, moved_chunks)",
        f"moved_found = Gather<axis = 1>({rows}, moved_places)",
        "moved_heads = Gather(rows_sizes, zero)",
        f"moved_queries = Shape({qpos})",
        "moved_shape = Concat<axis = 0>(one, moved_heads, moved_queries, moved_keys)",
        "term = Reshape(moved_found, moved_shape)",
    ]


def _up_to(to: str, positions: str, multiple: str) -> list[str]:
    """Statements that give ``to``, [1]: how many positions there are, up to a whole ``multiple``."""
    return [
        f"{to}_given = Shape({positions})",
        f"{to}_over = Add({to}_given, {multiple})",
        f"{to}_less = Sub({to}_over, rows_one)",
        f"{to}_parts = Div({to}_less, {multiple})",
        f"{to} = Mul({to}_parts, {multiple})",
    ]


def _counted(to: str, start: str, end: str) -> list[str]:
    """Statements that give ``to``, the numbers from ``start`` up to before ``end``, [1] both."""
    return [
        f"{to}_axis = Constant<value_ints = [0]>()",
        f"{to}_start = Squeeze({start}, {to}_axis)",
        f"{to}_end = Squeeze({end}, {to}_axis)",
        f"{to}_step = Constant<value_int = 1>()",
        f"{to} = Range({to}_start, {to}_end, {to}_step)",
    ]
