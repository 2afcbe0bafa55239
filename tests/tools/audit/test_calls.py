"""Calls of graphs in a child process: limits, and what padding, batches and cuts into calls may not change."""

from pathlib import Path
from typing import Any

import pytest

import posexport
from posexport.tools.audit.finding import Findings
from tests.tools.audit.graphs import saved

_HEAD = '<ir_version: 8, opset_import: ["": 18]>'
_TABLE = f"float[20, 2] table = {{{', '.join(str(1.0 + number % 13) for number in range(40))}}}"


def audited(text: str, folder: Path, **options: Any) -> Findings:
    return posexport.audit(saved(text, folder), run=True, select=["PX7"], **options)


#: a mean over padded places too: the sum is masked, the count is not
MEAN = f"""{_HEAD}
pooled (int64[B, T] input_ids, int64[B, T] attention_mask) => (float[B, 2] sentence_embedding)
<{_TABLE}, int64[1] tokens = {{1}}, int64[1] last = {{-1}}>
{{
    e = Gather (table, input_ids)
    m = Cast <to = 1> (attention_mask)
    m3 = Unsqueeze (m, last)
    real = Mul (e, m3)
    sentence_embedding = ReduceMean <keepdims = 0> (real, tokens)
}}"""
#: the last token, padded or not, as SigLIP reads it
LAST = f"""{_HEAD}
last (int64[B, T] input_ids, int64[B, T] attention_mask) => (float[B, 2] pooled)
<{_TABLE}, int64 end = {{-1}}>
{{
    e = Gather (table, input_ids)
    pooled = Gather <axis = 1> (e, end)
}}"""
#: one scale of all rows
DYNAMIC = f"""{_HEAD}
quantized (float[B, T, 4] inputs_embeds) => (float[B, T, 4] y) {{
    q, scale, zero = DynamicQuantizeLinear (inputs_embeds)
    y = DequantizeLinear (q, scale, zero)
}}"""
#: rows of a batch become one row
NAN = f"""{_HEAD}
logarithm (float[B, T, 4] inputs_embeds) => (float[B, T, 4] y) {{ y = Log (inputs_embeds) }}"""


def test_a_mean_that_counts_padded_places(tmp_path: Path) -> None:
    (found,) = audited(MEAN, tmp_path)
    assert found.code == "PX702"
    assert found.nodes == ("sentence_embedding",)
    assert "6 padded places on the right change" in found.message


def test_a_pooling_that_reads_the_place_at_the_edge_is_a_convention(tmp_path: Path) -> None:
    assert list(audited(LAST, tmp_path)) == []


def test_dynamic_quantization_is_a_warning_that_says_why(tmp_path: Path) -> None:
    (found,) = audited(DYNAMIC, tmp_path)
    assert (found.code, found.severity) == ("PX701", "warning")
    assert "one scale for all rows and places of a call" in found.message


def test_no_number(tmp_path: Path) -> None:
    (found,) = audited(NAN, tmp_path)
    assert found.code == "PX705"
    assert "not a number" in found.message


def test_a_graph_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    endless = f"""{_HEAD}
    endless (float[B, T] inputs_embeds) => (float y) {{
        most = Constant <value_int = 9223372036854775807> ()
        go = Constant <value = bool {{1}}> ()
        start = Constant <value_float = 0.0> ()
        y = Loop (most, go, start) <body = step (int64 i, bool on, float x) => (bool still, float next) {{
            still = Identity (on)
            next = Cos (x)
        }}>
    }}"""
    found = audited(endless, tmp_path, timeout=2)
    assert list(found) == []
    assert list(found.skipped.values()) == ["its calls took more than 2 s"]


def test_a_graph_that_takes_too_much_memory_is_refused_by_the_system(tmp_path: Path) -> None:
    large = f"""{_HEAD}
    large (float[B, T] inputs_embeds) => (float[N] y) {{
        size = Constant <value_ints = [500000000]> ()
        zeros = ConstantOfShape (size)
        y = Cos (zeros)
    }}"""
    found = audited(large, tmp_path, memory="1GB")
    assert list(found) == []
    (reason,) = found.skipped.values()
    assert "no call is computed" in reason
    assert "memory" in reason.lower() or "alloc" in reason.lower()


def test_inputs_that_cannot_be_fed_are_named(tmp_path: Path) -> None:
    masked = f"""{_HEAD}
    masked (float[B, T, 2] inputs_embeds, float[B, 1, T, T] attention_mask) => (float[B, T, 2] y)
    {{ y = Identity (inputs_embeds) }}"""
    (reason,) = audited(masked, tmp_path).skipped.values()
    assert reason == "the mask attention_mask of rank 4 may be added or multiplied"


@pytest.mark.parametrize("memory", ["much", "-1GB", ""])
def test_a_size_that_is_none(memory: str, tmp_path: Path) -> None:
    with pytest.raises(posexport.PosexportError, match="memory"):
        audited(NAN, tmp_path, memory=memory)
