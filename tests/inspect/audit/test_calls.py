"""Calls of graphs in a child process: limits, and what padding, batches and cuts into calls may not change."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import posexport
from posexport.base.options.commands import AuditOptions
from posexport.inspect.audit.calls.opened import opened
from posexport.inspect.audit.finding import Findings
from posexport.inspect.audit.rules import unlike_providers
from posexport.inspect.audit.subject import Subject
from tests.inspect.audit.graphs import saved

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


#: no input has an axis of rows
ONE = f"""{_HEAD}
one (float[1, 4] x) => (float[1, 4] y) {{ y = Cos (x) }}"""
#: the first axis is time
FOLLOWING = f"""{_HEAD}
following (float[sequence_length, 4] x) => (float[sequence_length, 4] y)
<int64 rows = {{0}}>
{{ y = CumSum (x, rows) }}"""


#: sound of the example's length
SOUND = f"""{_HEAD}
sound (float[B, S] input_values) => (float[B, S] y)
<float[101] window = {{{", ".join(["0.5"] * 101)}}}>
{{ y = Mul (input_values, window) }}"""


def test_longer_sound_that_fails(tmp_path: Path) -> None:
    (found,) = audited(SOUND, tmp_path)
    assert found.code == "PX703"
    assert found.message.startswith("sound of 1237 samples fails, sound of 101 does not")


@pytest.mark.parametrize("graph", [ONE, FOLLOWING], ids=["without-rows", "time-first"])
def test_a_first_axis_that_is_no_batch(graph: str, tmp_path: Path) -> None:
    assert list(audited(graph, tmp_path)) == []


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


#: a chain in which a provider may compute one node wrongly
CHAIN = f"""{_HEAD}
chain (int64[B, T] input_ids) => (float[B, T, 2] y)
<{_TABLE}, float half = {{0.5}}> {{
    e = Gather (table, input_ids)
    a = Mul (e, half)
    b = Tanh (a)
    c = Add (b, e)
    d = Cos (c)
    y = Add (d, b)
}}"""


def on_another_provider(path: Path, wrong: str) -> list[str]:
    """What PX706 says of a provider that computes ``wrong`` as Identity."""

    def broken(file: Path, provider: str) -> Any:
        def run(feeds: Any, *, model: bytes = b"", level: str = "all") -> Any:
            proto = onnx.load_model_from_string(model) if model else onnx.load(file)
            for node in proto.graph.node:
                node.op_type = "Identity" if node.op_type == wrong else node.op_type
            return calls.direct(feeds, level=level, model=proto.SerializeToString())

        assert provider == "other"
        return run

    subject = Subject(path)
    with opened(subject, AuditOptions()) as calls:
        calls.another, calls.providers, subject.calls = broken, ["other"], calls
        return [place.message for place in unlike_providers.RULE.check(subject)]


def test_the_first_node_that_another_provider_computes_differently_is_named(tmp_path: Path) -> None:
    path = saved(CHAIN, tmp_path)
    assert on_another_provider(path, "Sinh") == []
    (message,) = on_another_provider(path, "Tanh")
    assert message.startswith("'y' on other is not that on cpu at batch 1, 1 tokens: off by ")
    assert message.endswith("; it starts at Tanh 'b'")


def test_a_variant_that_is_another_model(tmp_path: Path) -> None:
    saved(CHAIN, tmp_path)
    for name, factor in (("model_fp16.onnx", 1.001), ("model_q8.onnx", -0.3)):
        other = onnx.load(tmp_path / "model.onnx")
        for tensor in other.graph.initializer:
            if tensor.name == "half":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(0.5 * factor, np.float32), "half"))
            else:
                half = onnx.numpy_helper.to_array(tensor).astype(np.float16)
                tensor.CopyFrom(onnx.numpy_helper.from_array(half, "table16"))
        other.graph.node.insert(0, onnx.helper.make_node("Cast", ["table16"], ["table"], to=onnx.TensorProto.FLOAT))
        onnx.save(other, tmp_path / name)
    found = posexport.audit(tmp_path, run=True, select=["PX707"])
    assert [(fault.file, fault.nodes) for fault in found] == [("model_q8.onnx", ("y",))]
    assert "differs from 'model.onnx' by " in next(iter(found)).message


#: a graph of one token a call, as transformers.exporters writes for decode steps
STEP = f"""{_HEAD}
step (int64[B, 1] input_ids, float[B, 2] past_state) => (float[B, 1, 2] logits, float[B, 2] present_state)
<{_TABLE}, int64[1] tokens = {{1}}>
{{
    e = Gather (table, input_ids)
    row = Squeeze (e, tokens)
    present_state = Add (past_state, row)
    logits = Unsqueeze (present_state, tokens)
}}"""
#: a picture with as many channels as the weights have, which the file declares as free
CHANNELS = f"""{_HEAD}
patches (float[B, C, H, W] pixel_values, float[5, 3, 8, 8] kernel) => (float[B, 5, h, w] y)
{{ y = Conv <strides = [8, 8]> (pixel_values, kernel) }}"""


def test_a_graph_of_single_steps_is_not_compared_with_itself(tmp_path: Path) -> None:
    assert list(audited(STEP, tmp_path)) == []


def test_channels_are_those_of_the_convolution(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CHANNELS)
    weight = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "kernel"))
    onnx.save(model, tmp_path / "model.onnx")
    findings = posexport.audit(tmp_path / "model.onnx", run=True, select=["PX7"])
    assert not findings.skipped
    assert not list(findings)
