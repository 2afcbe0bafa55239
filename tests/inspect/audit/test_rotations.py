"""RoPE frequencies: of configurations by transformers' functions, of graphs by tables and angles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import posexport
from posexport.inspect.audit.analyses.frequencies import expected
from posexport.inspect.audit.analyses.rotations import rotations
from posexport.inspect.audit.subject import Subject
from tests.tolerances import agree_each

_CONFIG = {"hidden_size": 80, "num_attention_heads": 5, "max_position_embeddings": 4096}
_OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.5},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 256},
    "longrope": {
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "original_max_position_embeddings": 1024,
        "factor": 4.0,
    },
}


@pytest.mark.parametrize("kind", _OPTIONS)
def test_frequencies_are_those_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    options = {"rope_type": kind, "rope_theta": 20_000.0, **_OPTIONS[kind]}
    own = expected(options, _CONFIG)
    config = transformers.LlamaConfig(**_CONFIG, rope_parameters=options)
    if kind == "default":
        right = {"default": 20_000.0 ** (-np.arange(0, 16, 2) / 16)}
    elif kind == "longrope":
        right = {
            name: ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)[0].numpy()
            for name, length in (("short", 5), ("long", 2000))
        }
    else:
        right = {kind: ROPE_INIT_FUNCTIONS[kind](config, "cpu")[0].numpy()}
    assert own.keys() == right.keys()
    for name, frequencies in right.items():
        agree_each(own[name], frequencies, "frequencies", np.float32)


@pytest.mark.parametrize("layout", ["halves", "interleaved", "once"])
def test_frequencies_of_a_table(layout: str, tmp_path: Path) -> None:
    frequencies = 5e5 ** (-np.arange(0, 24, 2) / 24)
    angles = np.arange(37)[:, None] * frequencies
    table = np.sin({"halves": np.tile(angles, 2), "interleaved": np.repeat(angles, 2, 1), "once": angles}[layout])
    ids = helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["B", "T"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "T", table.shape[1]])
    weight = numpy_helper.from_array(table.astype(np.float32), "sines")
    graph = helper.make_graph([helper.make_node("Gather", ["sines", "position_ids"], ["y"])], "g", [ids], [y], [weight])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    (rotation,) = rotations(Subject(path).nodes)
    agree_each(rotation.frequencies, frequencies, "frequencies", np.float32)
    assert (rotation.rows, round(rotation.base or 0, -3)) == (37, 500_000)
    known = [each.what for each in posexport.audit(path).recognised]
    assert known == ["rotary (RoPE), 12 frequencies, base 500000, a table of 37 positions"]


@pytest.mark.parametrize(
    ("frequencies", "found"),
    [("Mul (base, exact)", ["PX504"]), ("Pow (grown, exponents)", [])],
    ids=["frozen", "by length"],
)
def test_dynamic_scaling_is_missed_where_frequencies_are_constants(
    tmp_path: Path, frequencies: str, found: list[str]
) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        rotated (float[B, T] position_ids, int64[B, T] input_ids) => (float[B, T, 4] y)
        <float base = {{1.0}}, float theta = {{10000.0}}, int64[1] last = {{-1}},
         float[4] exact = {{1.0, 0.1, 0.01, 0.001}}, float[4] exponents = {{0.0, -0.25, -0.5, -0.75}}>
        {{
            length = ReduceMax <keepdims = 0> (position_ids)
            grown = Add (theta, length)
            scaled = {frequencies}
            both = Mul (scaled, exact)
            positions = Unsqueeze (position_ids, last)
            angles = Mul (positions, both)
            y = Cos (angles)
        }}""")
    onnx.save(model, tmp_path / "model.onnx")
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    config = {"hidden_size": 8, "num_attention_heads": 1, "max_position_embeddings": 64, "rope_parameters": rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert [finding.code for finding in posexport.audit(tmp_path, select=["PX504"])] == found
