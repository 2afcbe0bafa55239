"""Variants of the rules about values and precision that their two graphs do not have."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

import posexport
from posexport.inspect.audit.registry import RULES
from tests.inspect.audit.graphs import saved, subject

ADDED = """
    <ir_version: 8, opset_import: ["": 18]>
    added (float[B, H, T, D] q, float[B, H, D, T] k, float[B, H, T, D] v, int64[B, T] attention_mask)
        => (float[B, H, T, D] y)
    <int64[2] axes = {{1, 2}}, float one = {{1.0}}, float none = {{0.0}},
     float large = {{-10000.0}}, int64 kept = {{1}}>
    {{
        products = MatMul (q, k)
        keys = Unsqueeze (attention_mask, axes)
        x = Cast <to = 1> (keys)
        {bias}
        scores = Add (bias, products)
        p = Softmax <axis = -1> (scores)
        y = MatMul (p, v)
    }}
"""
CACHE = """
    <ir_version: 8, opset_import: ["": 18]>
    cache (float[B, T, D] x, float[B, P, D] past_key_values_0_key, float[B, P, D] past_key_values_0_value)
        => (float[B, S, D] y, float[B, S, D] present_0_key, float[B, S, D] present_0_value)
    {{
        all_keys = Concat <axis = 1> (past_key_values_0_key, x)
        all_values = Concat <axis = 1> (past_key_values_0_value, x)
        y = Add (all_keys, all_values)
        {states}
    }}
"""


def messages(code: str, text: str, folder: Path) -> list[str]:
    return [place.message for place in RULES[code].check(subject(text, folder))]


@pytest.mark.parametrize(
    ("bias", "padding"),
    [
        ("bias = Sub (one, x)", "0 for a token and 1 for padding"),
        ("truths = Equal (keys, kept) bias = Where (truths, none, one)", "0 for a token and 1 for padding"),
        ("bias = Mul (x, large)", None),
        ("truths = Equal (keys, kept) bias = Where (truths, none, large)", None),
        ("bias = Log (x)", None),
    ],
)
def test_masks_are_judged_by_what_they_add(bias: str, padding: str | None, tmp_path: Path) -> None:
    said = messages("PX304", ADDED.format(bias=bias), tmp_path)
    assert len(said) == (padding is not None)
    assert padding is None or padding in said[0]


@pytest.mark.parametrize(
    ("keys", "values", "said"),
    [
        ("Identity (all_keys)", "Identity (all_values)", []),
        ("Identity (past_key_values_0_key)", "Identity (all_values)", ["'present_0_key' is 'past_key_values_0_key'"]),
        ("Identity (x)", "Identity (all_values)", ["'present_0_key' does not depend on 'past_key_values_0_key'"]),
        ("Identity (x)", "Identity (x)", []),  # every state is the new tokens' part: the caller joins them
    ],
)
def test_states_are_paired_by_name(keys: str, values: str, said: list[str], tmp_path: Path) -> None:
    found = messages("PX306", CACHE.format(states=f"present_0_key = {keys} present_0_value = {values}"), tmp_path)
    assert len(found) == len(said)
    assert all(part in message for part, message in zip(said, found, strict=True))


FUSED = """
    <ir_version: 10, opset_import: ["": {opset}]>
    fused (float[B, H, T, D] q, float[B, H, T, D] k, float[B, H, T, D] v) => (float[B, H, T, D] y)
    {{ y = Attention (q, k, v) }}
"""


@pytest.mark.parametrize(("version", "opset", "apart"), [("1.31.1", 26, 0), ("1.32.0", 24, 0), ("1.32.0", 25, 1)])
def test_attention_of_opset_25_is_taken_apart_from_1_32_on(
    version: str, opset: int, apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: the optimised graphs of these versions have 1, 1 and 59 nodes."""
    monkeypatch.setattr("posexport.base.targets.kernels.table_of", lambda _: version)
    assert len(messages("PX402", FUSED.format(opset=opset), tmp_path)) == apart


RANGE = "size = Shape <start = 1, end = 2> (ids) all = Squeeze (size) positions = Range (zero, all, one)"
ROWS = """
    <ir_version: 8, opset_import: ["": 18]>
    rows (int64[B, T] input_ids, int64[B, T] attention_mask) => (float[N, M, 1] y)
    <float[66, 1] table = {{{table}}}, int64 padding = {{1}}, int64 one = {{1}}, int64 last = {{65}}>
    {{
        {positions}
        y = Gather (table, positions)
    }}
"""


@pytest.mark.parametrize(
    ("positions", "wrong"),
    [
        # RoBERTa's: padding_idx + count of tokens
        (
            "equal = Equal (input_ids, padding) real = Not (equal) kept = Cast <to = 7> (real) "
            "count = CumSum (kept, one) counted = Mul (count, kept) positions = Add (counted, padding)",
            False,
        ),
        # OPT's: cumsum * mask - 1 + 2
        ("count = CumSum (attention_mask, one) positions = Add (count, one)", False),
        ("count = CumSum (attention_mask, one) positions = Sub (count, one)", True),
    ],
)
def test_the_first_row_is_computed(positions: str, wrong: bool, tmp_path: Path) -> None:
    text = ROWS.format(table=", ".join(["1.0"] * 66), positions=positions)
    assert len(messages("PX204", text, tmp_path)) == wrong


@pytest.mark.parametrize(("padding", "wrong"), [("0.0", True), ("1.0", False)])
def test_a_row_of_zeros_is_padding_s(padding: str, wrong: bool, tmp_path: Path) -> None:
    """RoBERTa's tables of any length have zeros in row 1."""
    table = ", ".join(["1.0", padding, *["1.0"] * 48])
    text = ROWS.format(table=table, positions=RANGE.replace("ids", "input_ids").replace("zero", "none"))
    text = text.replace("float[66, 1]", "float[50, 1]").replace("int64 padding", "int64 none = {0}, int64 padding")
    assert len(messages("PX204", text, tmp_path)) == wrong


ANGLES = """
    <ir_version: 8, opset_import: ["": 18]>
    angles ({type}[B, T, 3] x, int64[B, T] ids) => ({type}[3, 3] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 end = {{3}}>
    {{
        {positions}
        half = Cast <to = {to}> (positions)
        {use}
    }}
"""


@pytest.mark.parametrize(
    ("type_", "positions", "use", "severities"),
    [
        ("float16", RANGE, "y = Cos (half)", ["error"]),
        ("bfloat16", RANGE, "c = Cos (half) s = Sin (half) y = Add (c, s)", ["error"]),
        ("float16", RANGE, "y = Mul (half, half)", [None]),
        ("float", RANGE, "y = Cos (half)", []),
        ("float16", "positions = Range (zero, end, one)", "y = Cos (half)", []),  # 3 positions in every call
    ],
)
def test_positions_are_exact_up_to_a_limit(
    type_: str, positions: str, use: str, severities: list[str | None], tmp_path: Path
) -> None:
    to = {"float16": 10, "bfloat16": 16, "float": 1}[type_]
    text = ANGLES.format(type=type_, positions=positions, to=to, use=use)
    if type_ == "bfloat16":  # Cos has it from opset 22 on
        text = text.replace('"": 18', '"": 22').replace("ir_version: 8", "ir_version: 10")
    places = list(RULES["PX301"].check(subject(text, tmp_path)))
    assert [place.severity for place in places] == severities


MASKED = """
    <ir_version: 8, opset_import: ["": 18]>
    masked (float[B, H, T, D] q, float[B, H, D, T] k, float[B, H, T, D] v, int64[B, T] attention_mask)
        => (float[B, H, T, D] y)
    <int64[2] axes = {{1, 2}}, int64 zero = {{0}}, int64 one = {{1}}, int64[1] column = {{1}},
     double lowest = {{{lowest}}},
     float nothing = {{0.0}}>
    {{
        infinity = Cast <to = 1> (lowest)
        length = Shape <start = 2, end = 3> (q)
        end = Squeeze (length)
        positions = Range (zero, end, one)
        queries = Unsqueeze (positions, column)
        later = Greater (positions, queries)
        keys = Unsqueeze (attention_mask, axes)
        kept = Cast <to = 9> (keys)
        padded = Not (kept)
        products = MatMul (q, k)
        {first}
        p = Softmax <axis = -1> (scores)
        {second}
        y = MatMul (p2, v)
    }}
"""
BOTH = "masked = Or (later, padded) scores = Where (masked, infinity, products)"
PADDING = "scores = Where (padded, infinity, products)"


@pytest.mark.parametrize(
    ("lowest", "first", "second", "severity"),
    [
        ("-1e39", BOTH, "p2 = Identity (p)", "warning"),
        ("-1e39", BOTH, "nan = IsNaN (p) p2 = Where (nan, nothing, p)", None),
        ("-1e39", PADDING, "p2 = Identity (p)", "note"),
        ("-1e9", BOTH, "p2 = Identity (p)", None),
        ("-1e39", "scores = Where (later, infinity, products)", "p2 = Identity (p)", None),  # no row is empty
    ],
)
def test_masks_of_minus_infinity(lowest: str, first: str, second: str, severity: str | None, tmp_path: Path) -> None:
    text = MASKED.format(lowest=lowest, first=first, second=second)
    places = list(RULES["PX303"].check(subject(text, tmp_path)))
    assert [place.severity for place in places] == ([severity] if severity else [])


FIRST = """
    <ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
    first (float[{batch}, T, 20] x, int64[{batch}, T] position_ids) => (float[{batch}, T, 20] y)
    <float[64, 2] cosines = {{{table}}}, int64[1] zero = {{0}}, int64[1] end = {{1}}, int64[2] starts = {{0, 0}},
     int64[2] ends = {{1, 1}}, int64[1] axis = {{0}}>
    {{
        {positions}
        y = com.microsoft.RotaryEmbedding <num_heads = 5> (x, positions, cosines, cosines)
    }}
"""


@pytest.mark.parametrize(
    ("batch", "positions", "wrong"),
    [
        ("B", "positions = Identity (position_ids)", 0),
        ("B", "cut = Slice (position_ids, starts, ends) positions = Reshape (cut, end)", 1),
        ("B", "cut = Slice (position_ids, zero, end, axis) positions = Reshape (cut, end)", 1),
        ("B", "last = Slice (position_ids, zero, end, end) positions = Identity (last)", 0),  # the first column
        ("1", "cut = Slice (position_ids, starts, ends) positions = Reshape (cut, end)", 0),
    ],
)
def test_positions_of_the_first_row(batch: str, positions: str, wrong: int, tmp_path: Path) -> None:
    text = FIRST.format(batch=batch, positions=positions, table=", ".join(["1.0"] * 128))
    assert len(messages("PX203", text, tmp_path)) == wrong


BIASED = """
    <ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
    biased (float[B, {shape}] q, float[B, {shape}] k, float[B, {shape}] v, int64[B, T] attention_mask)
        => (float[B, {shape}] y)
    <int64[2] axes = {{1, 2}}, double lowest = {{-1e39}}, float none = {{0.0}}>
    {{
        infinity = Cast <to = 1> (lowest)
        keys = Unsqueeze (attention_mask, axes)
        kept = Cast <to = 9> (keys)
        bias = Where (kept, none, infinity)
        y = {attention}
    }}
"""


@pytest.mark.parametrize(
    ("shape", "attention", "severity"),
    [
        (
            "T, 20",
            "com.microsoft.MultiHeadAttention <num_heads = 5, unidirectional = 1> (q, k, v, , , bias)",
            "warning",
        ),
        ("T, 20", "com.microsoft.MultiHeadAttention <num_heads = 5> (q, k, v, , , bias)", "note"),
        ("5, T, 4", "Attention <is_causal = 1> (q, k, v, bias)", None),  # its rows without a key are 0
    ],
)
def test_fused_attention_without_keys(shape: str, attention: str, severity: str | None, tmp_path: Path) -> None:
    places = list(RULES["PX303"].check(subject(BIASED.format(shape=shape, attention=attention), tmp_path)))
    assert [place.severity for place in places] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("mask", "axes", "found"), [("bool[B, S]", "", 1), ("bool[B, S]", "{1, 2}", 0), ("bool[T, S]", "", 0)]
)
def test_masks_of_written_out_attention_by_their_axes(mask: str, axes: str, found: int, tmp_path: Path) -> None:
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        written (float[B, 5, T, 4] q, float[B, 5, 4, S] k, float[B, 5, S, 4] v, {mask} attention_mask)
            => (float[B, 5, T, 4] y)
        <int64[2] axes = {axes or "{0, 1}"}, float least = {{-10000.0}}>
        {{
            scores = MatMul (q, k)
            keys = {"Unsqueeze (attention_mask, axes)" if axes else "Identity (attention_mask)"}
            kept = Where (keys, scores, least)
            p = Softmax <axis = -1> (kept)
            y = MatMul (p, v)
        }}"""
    assert len(messages("PX311", text, tmp_path)) == found


def test_an_operator_that_onnx_runtime_adds_to_the_domain_of_onnx(tmp_path: Path) -> None:
    """Builders of onnxruntime-genai write it; onnx.checker does not know it."""
    text = """
        <ir_version: 8, opset_import: ["": 22]>
        norm (float[B, T, 20] x) => (float[B, T, 20] y)
        <float[20] weight = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}>
        { y = SimplifiedLayerNormalization <axis = -1> (x, weight) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    assert list(posexport.audit(tmp_path / "model.onnx", select=["PX4"])) == []


def test_float16_of_an_operator_that_the_device_lacks_is_computed_on_the_cpu(tmp_path: Path) -> None:
    """ONNX Runtime casts the inputs of nodes that no provider took."""
    text = """
        <ir_version: 10, opset_import: ["": 22]>
        norm (float16[B, 3, T] x, float16[3] scale, float16[3] bias) => (float16[B, 3, T] y)
        { y = InstanceNormalization (x, scale, bias) }"""
    path = saved(text, tmp_path)
    assert [each.code for each in posexport.audit(path, select=["PX4"], provider="cuda")] == ["PX407"]


@pytest.mark.parametrize(("limit", "found"), [(141, 0), (150, 0), (115, 0), (100, 1), (170, 1)])
def test_a_limit_below_the_end_of_a_table_is_its_guard(limit: int, found: int, tmp_path: Path) -> None:
    """Fewer characters than CANINE's last layer has positions pass its convolution: 141 of 150, or 47 of 61."""
    rows = ", ".join(["0.5"] * 150)
    text = f"""
        <ir_version: 8, opset_import: ["": 18]>
        guarded (int64[B, T] ids) => (float[T, 1] y)
        <float[150, 1] table = {{{rows}}}, int64 zero = {{0}}, int64 one = {{1}}, int64[1] limit = {{{limit}}}>
        {{
            shape = Shape (ids)
            length = Shape <start = 1> (ids)
            over = Greater (length, limit)
            more = Cast <to = 7> (over)
            other = Add (shape, more)
            passed = Reshape (ids, other)
            size = Shape <start = 1> (passed)
            end = Squeeze (size)
            positions = Range (zero, end, one)
            y = Gather (table, positions)
        }}"""
    assert len(messages("PX201", text, tmp_path)) == found
