"""What an audit recognises in graphs of any tool."""

from pathlib import Path

import pytest

import posexport
from tests.inspect.audit.graphs import saved

_SCORES = """
        positions = Range (zero, end, one)
        rows = Unsqueeze (positions, last)
        distances = Sub (rows, positions)
        keys = Transpose <perm = [0, 1, 3, 2]> (k)
        products = MatMul (q, keys)
"""
_HEAD = """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[B, 5, T, 12] q, float[B, 5, T, 12] k, float[B, 5, T, 12] v) => (float[B, 5, T, 12] y)
"""
_TAIL = """
        scores = Add (products, bias)
        weights = Softmax (scores)
        y = MatMul (weights, v)
"""
_LENGTH = """
        length = Shape <start = 2, end = 3> (q)
        end = Squeeze (length)
"""


def _recognised(constants: str, steps: str, folder: Path) -> list[tuple[str, str]]:
    text = f"{_HEAD} <{constants}> {{ {_LENGTH} {_SCORES} {steps} {_TAIL} }}"
    findings = posexport.audit(saved(text, folder))
    return [(known.kind, known.what) for known in findings.recognised]


_COMMON = "int64 zero = {0}, int64 one = {1}, int64[1] last = {1}"


def test_a_table_of_buckets(tmp_path: Path) -> None:
    table = ", ".join(str(x / 7) for x in range(7 * 5))
    steps = """
        far = Min (distances, most)
        near = Max (far, least)
        buckets = Add (near, three)
        looked = Gather (table, buckets)
        bias = Transpose <perm = [2, 0, 1]> (looked)
    """
    constants = (
        f"{_COMMON}, int64 most = {{3}}, int64 least = {{-3}}, int64 three = {{3}}, float[7, 5] table = {{{table}}}"
    )
    assert _recognised(constants, steps, tmp_path) == [
        ("attention", "1 of several nodes (MatMul, Softmax, MatMul)"),
        ("attention bias", "by distance, from the table 'table' [7, 5], in 1 of 1"),
    ]


@pytest.mark.parametrize(
    ("slopes", "last", "is_alibi"),
    [
        ("0.5, 0.25, 0.125, 0.0625, 0.7071", "Identity", True),
        ("0.5, 0.1, 0.9, 0.2, 0.3", "Identity", False),
        ("0.5, 0.25, 0.125, 0.0625, 0.7071", "Cos", False),  # frequencies of RoPE
    ],
)
def test_slopes(slopes: str, last: str, is_alibi: bool, tmp_path: Path) -> None:
    steps = f"""
        x = Cast <to = 1> (distances)
        product = Mul (x, slopes)
        bias = {last} (product)
    """
    known = _recognised(f"{_COMMON}, float[5, 1, 1] slopes = {{{slopes}}}", steps, tmp_path)
    assert (("attention bias", "by distance times a slope for each head (ALiBi), in 1 of 1") in known) == is_alibi


def test_relative_keys(tmp_path: Path) -> None:
    table = ", ".join(str(x / 9) for x in range(12 * 9))
    steps = """
        near = Max (distances, least)
        capped = Min (near, most)
        index = Add (capped, four)
        by_distance = MatMul (q, table)
        all = Expand (index, shape)
        bias = GatherElements <axis = -1> (by_distance, all)
    """
    constants = (
        f"{_COMMON}, int64 most = {{4}}, int64 least = {{-4}}, int64 four = {{4}}, int64[4] shape = {{1, 5, 1, 1}}, "
        f"float[12, 9] table = {{{table}}}"
    )
    assert ("attention bias", "by content and distance (relative keys, disentangled), in 1 of 1") in _recognised(
        constants, steps, tmp_path
    )


def test_position_tables(tmp_path: Path) -> None:
    table = ", ".join(str(x / 9) for x in range(8 * 3))
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (int64[B, T] input_ids) => (float[T, 3] y)
        <float[8, 3] table = {{{table}}}, int64 zero = {{0}}, int64 one = {{1}}, int64 last = {{7}}>
        {{
            length = Shape <start = 1, end = 2> (input_ids)
            end = Squeeze (length)
            positions = Range (zero, end, one)
            within = Min (positions, last)
            y = Gather (table, within)
        }}
    """
    known = posexport.audit(saved(text, tmp_path)).recognised
    assert [(each.kind, each.what) for each in known] == [("positions", "learned, table 'table' [8 x 3]")]
    assert known[0].nodes == ("y",)
