"""What stands in an exported file: functions, opsets, metadata, external data."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from posexport.base.spec import ENCODER_SEQUENCE, SEQUENCE
from posexport.base.targets.target import Target
from posexport.conversion.export import negotiate
from posexport.conversion.export.build import _longest, build
from posexport.conversion.export.save import SharedFile
from posexport.conversion.export.trace import trace
from posexport.errors import PosexportError
from posexport.graph.lowering.plan import ATTENTION, check_name, choose
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.operator import HELPERS, WHOLE
from posexport.sources.example import axis_sizes, example
from tests.small import in_short, recipe, source
from tests.tolerances import agree

WITH_TERMS = {
    "relative-key": {"MaskedRelativeKeyAttention", "RelativeKeyScores"},
    "relative-key-query": {"MaskedRelativeKeyQueryAttention", "RelativeKeyQueryScores"},
    "shaw-k": {"MaskedClippedAttention", "ClippedScores"},
    "shaw-kv": {"MaskedClippedClippedValuesAttention", "ClippedScores", "ClippedValues"},
}


def outputs(path: Path, made: object) -> list[np.ndarray]:
    feeds = {name: tensor.numpy() for name, tensor in example(made.inputs, axis_sizes(made.inputs)).items()}  # type: ignore[attr-defined]
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)


#: one of a table of distances, one of queries and keys, one of values
IN_SHORT = ("relative-key", "relative-key-query", "shaw-kv")


@pytest.mark.all(but=("shaw-kv",))
@pytest.mark.parametrize("encoding", in_short(WITH_TERMS, IN_SHORT.__contains__))
def test_functions_are_visible_and_standard_inside(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    built = build(source(encoding), path, recipe())
    model = onnx.load(path)
    assert {f.name for f in model.functions} == set(built.functions)
    apart = {name for name in built.functions if name in HELPERS or name.startswith(WHOLE)}
    assert set(built.functions) - apart == WITH_TERMS[encoding]
    assert {n.op_type for n in model.graph.node if n.domain == "posexport"} <= WITH_TERMS[encoding]
    assert any(n.domain == "posexport" for n in model.graph.node)
    for function in model.functions:
        assert {n.domain for n in function.node} <= {"", "posexport"}, "bodies use standard operators only"
        assert {e.domain: e.version for e in function.opset_import}[""] == 18
    names = [f.name for f in model.functions]
    assert names.index(next(n for n in names if n.endswith("Attention"))) == len(names) - 1, "callees come first"


@pytest.mark.parametrize("encoding", in_short(["absolute", "sinusoidal", "nope"], "absolute".__eq__))
def test_no_functions_without_terms(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert build(source(encoding), path, recipe()).functions == ["MaskedAttention"]


@pytest.mark.parametrize("encoding", in_short(WITH_TERMS, IN_SHORT.__contains__))
def test_blockwise_formula_and_inline_agree(encoding: str, tmp_path: Path) -> None:
    made = source(encoding)
    build(made, tmp_path / "formula.onnx", recipe(lowering="formula"))
    build(made, tmp_path / "other.onnx", recipe(lowering="blockwise"))
    build(made, tmp_path / "flat.onnx", recipe(inline=True))
    flat = onnx.load(tmp_path / "flat.onnx")
    assert not flat.functions
    assert {e.domain for e in flat.opset_import} == {""}
    want = outputs(tmp_path / "formula.onnx", made)[0]
    for name in ("other", "flat"):
        agree(outputs(tmp_path / f"{name}.onnx", made)[0], want, "operator", np.float32)


def test_inline_is_without_scan_and_without_squeeze_of_unknown_rank(tmp_path: Path) -> None:
    """OpenVINO takes neither."""
    build(source("shaw-kv"), tmp_path / "flat.onnx", recipe(inline=True))
    assert "Scan" not in {node.op_type for node in onnx.load(tmp_path / "flat.onnx").graph.node}
    build(source("shaw-kv"), tmp_path / "m.onnx", recipe())
    bodies = [node for function in onnx.load(tmp_path / "m.onnx").functions for node in function.node]
    assert "Squeeze" in {node.op_type for node in bodies}
    assert all(len(node.input) == 2 for node in bodies if node.op_type == "Squeeze")
    assert choose(ATTENTION, AttentionSpec(), Target(inline=True)).lowering.name == "formula"


@pytest.mark.all
@pytest.mark.parametrize("length", [1, 127, 128, 129, 301])
def test_blockwise_at_the_edges_of_its_blocks(length: int, tmp_path: Path) -> None:
    made = source("relative-key-query", "max_positions=320")
    sizes = {"batch_size": 2, "sequence_length": length}
    feeds = {name: tensor.numpy() for name, tensor in example(made.inputs, sizes).items()}
    feeds["attention_mask"][1, length // 2 + 1 :] = 0
    got = []
    for lowering in ("formula", "blockwise"):
        path = tmp_path / f"{lowering}.onnx"
        build(made, path, recipe(lowering=lowering))
        got.append(onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)[0])
    agree(got[1], got[0], "operator", np.float32)


def test_refusal_of_a_lowering_says_why() -> None:
    spec = AttentionSpec(mask="pairs")
    with pytest.raises(PosexportError, match=f"blockwise does not apply to {spec.name}: the mask has a row for every"):
        choose(ATTENTION, spec, Target(), "blockwise")
    choice = choose(ATTENTION, spec, Target())
    assert choice.lowering.name == "formula"
    assert choice.rejected["attention"] == "ai.onnx Attention needs opset 23, the graph has 18"
    assert "--target cpu or cuda" in choice.rejected["multi-head"]
    with pytest.raises(PosexportError, match="unknown lowering 'fast'; known: auto, attention, blockwise, c"):
        check_name("fast")


@pytest.mark.all
@pytest.mark.parametrize("opset", in_short([18, 20, 23, 25], (18, 25).__contains__))
def test_opsets_that_the_runtime_takes(opset: int, tmp_path: Path) -> None:
    made = source("shaw-kv")
    path = tmp_path / "m.onnx"
    assert build(made, path, recipe(opset=opset)).opset == opset
    with_default = tmp_path / "d.onnx"
    build(made, with_default, recipe())
    agree(outputs(path, made)[0], outputs(with_default, made)[0], "operator", np.float32)


def test_opset_is_negotiated_with_the_runtime() -> None:
    assert negotiate.opset(None) == 18
    assert negotiate.takes(18)
    assert not negotiate.takes(99)
    assert not negotiate.takes(18, ir_version=99)
    with pytest.raises(PosexportError, match=r"--opset 99 cannot be used.*takes at most \d+"):
        negotiate.opset(99)
    with pytest.raises(PosexportError, match="--opset 11 cannot be used: posexport writes 18 and up"):
        negotiate.opset(11)


def test_an_opset_that_the_exporter_would_mix_is_refused() -> None:
    with pytest.raises(PosexportError, match=r"--opset 26 is beyond what torch .* can write \(it gave 18\)"):
        trace(source("absolute"), 26)


def test_metadata_says_what_a_lone_model_is(tmp_path: Path) -> None:
    made = source("absolute")
    build(made, tmp_path / "m.onnx", recipe())
    entries = {e.key: e.value for e in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(entries["posexport.limits"])["max_length"] == 23
    assert json.loads(entries["posexport.encoding"])["name"] == "absolute"
    assert json.loads(entries["posexport.source"])["sha256"] == made.sha256


def test_large_weights_go_outside_and_shape_constants_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posexport.conversion.export.save.EXTERNAL_ABOVE", 4096)
    made = source("relative-key")
    old = os.umask(0o022)
    try:
        build(made, tmp_path / "m.onnx", recipe())
    finally:
        os.umask(old)
    data = tmp_path / "m.onnx.data"
    assert data.stat().st_mode & 0o777 == 0o644, "a server under another user must read it"
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    outside = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert outside
    assert all(t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) * 4 >= 1024 for t in outside)
    monkeypatch.undo()
    build(made, tmp_path / "inside.onnx", recipe())
    np.testing.assert_array_equal(outputs(tmp_path / "m.onnx", made)[0], outputs(tmp_path / "inside.onnx", made)[0])


def test_weights_that_graphs_share_begin_at_pages(tmp_path: Path) -> None:
    """So that they can be mapped; equal ones are in the file once."""
    store, weights = SharedFile("shared.data"), [np.full(size, 0.5, np.float32) for size in (301, 517, 301)]
    for graph in ("a", "b"):
        inside = {f"w{number}": ir.Tensor(array + (number == 1)) for number, array in enumerate(weights)}
        values = [ir.Value(name=name, const_value=tensor) for name, tensor in inside.items()]
        model = ir.Model(ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 18}), ir_version=10)
        store.write(model, tmp_path / f"{graph}.onnx", None)
        held = [
            {entry.key: entry.value for entry in tensor.external_data}
            for tensor in onnx.load(tmp_path / f"{graph}.onnx", load_external_data=False).graph.initializer
        ]
        assert [int(entry["offset"]) for entry in held] == [0, 4096, 0]
    assert (tmp_path / "shared.data").stat().st_size == 4096 + 4 * 517


def test_shared_weights_of_4_bits_are_two_in_a_byte(tmp_path: Path) -> None:
    numbers = (np.arange(2049) % 16 - 8).astype(ml_dtypes.int4)
    value = ir.Value(name="w", const_value=ir.Tensor(numbers))
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 21}), ir_version=10)
    SharedFile("shared.data").write(model, tmp_path / "m.onnx", None)
    assert (tmp_path / "shared.data").stat().st_size == 1025
    (stored,) = onnx.load(tmp_path / "m.onnx").graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored), numbers)


def test_plain_onnxruntime_needs_no_posexport(tmp_path: Path) -> None:
    made = source("shaw-kv")
    build(made, tmp_path / "m.onnx", recipe())
    want = outputs(tmp_path / "m.onnx", made)[0]
    np.savez(tmp_path / "in.npz", **{n: t.numpy() for n, t in example(made.inputs, axis_sizes(made.inputs)).items()})
    code = (
        "import sys, numpy, onnxruntime as ort;"
        "s = ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider']);"
        "numpy.save(sys.argv[3], s.run(None, dict(numpy.load(sys.argv[2])))[0]);"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('posexport', 'torch')]"
    )
    files = [str(tmp_path / name) for name in ("m.onnx", "in.npz", "out.npy")]
    subprocess.run([sys.executable, "-I", "-c", code, *files], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), want)


def test_no_value_in_the_file_is_query_by_key_by_head_size(tmp_path: Path) -> None:
    """No operator materialises [l, r, d]: at 64 x 64 pairs nothing as large as 64 * 64 * head_size is ever made."""
    made = source("relative-key", "hidden=40", "heads=1", "max_positions=512")
    path = tmp_path / "m.onnx"
    build(made, path, recipe(lowering="formula", inline=True))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = onnx.load(path)
    del model.graph.output[:]
    floats = {i.name for i in model.graph.initializer}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for node in model.graph.node for name in node.output if name not in floats
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    sizes = {"batch_size": 1, "sequence_length": 64}
    values = session.run(None, {n: t.numpy() for n, t in example(made.inputs, sizes).items()})
    assert max(v.size for v in values) >= 64 * 64
    assert max(v.size for v in values) < 64 * 64 * 40


def test_a_fixed_axis_is_refused() -> None:
    made = source("absolute")

    class Frozen(type(made.module)):  # type: ignore[misc]
        def forward(self, **inputs: object) -> object:
            return tuple(y[:3, :11] for y in self.inner(**inputs))

    frozen = Frozen.__new__(Frozen)

    import torch

    torch.nn.Module.__init__(frozen)
    frozen.inner = made.module
    with pytest.raises(PosexportError, match=re.escape("encoder-absolute")):
        trace(msgspec.structs.replace(made, module=frozen), 18)


@pytest.mark.parametrize(
    ("settings", "limited", "longest"),
    [
        ((), [SEQUENCE], 23),
        ((), [], None),
        (("cross_attention=true",), [SEQUENCE, ENCODER_SEQUENCE], 23),
        (("cross_attention=true",), [SEQUENCE], None),
    ],
)
def test_the_longest_sequence_is_known_where_all_have_a_limit(
    settings: tuple[str, ...], limited: list[str], longest: int | None
) -> None:
    """By it a lowering may compute what grows with the length at once."""
    made = source("relative-key", *settings)
    limits = msgspec.structs.replace(made.limits, max_length=23, limited_axes=limited)
    assert _longest(msgspec.structs.replace(made, limits=limits)) == longest
