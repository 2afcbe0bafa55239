"""Element types, providers and kernels as records: a new one of each is a row, and the kernel table is what runs."""

import contextlib
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as binding

from posexport.base.targets import kernels
from posexport.base.targets.dtypes import BY_ORT_TYPE, DTYPES, FLOAT32, FLOATS, DType
from posexport.base.targets.kernels import Kernels, KernelTable, load_table, version_for
from posexport.base.targets.providers import CPU, CUDA, PROVIDERS, WEBGPU, Provider, register, targets
from posexport.base.targets.target import LAST_ATTENTION_OPSET, MICROSOFT, Target, target_names
from posexport.catalogue.stored import catalogue
from posexport.conversion.export.build import _lowered
from posexport.conversion.export.layout import BUNDLE
from posexport.errors import PosexportError
from posexport.graph.lowering.group_query import GroupQuery
from posexport.graph.lowering.plan import ATTENTION, FAMILIES
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.passes.pipeline import PASSES
from posexport.run.providers import make_session
from posexport.sources.builtin import builtin_source
from tests.small import recipe, source

sys.path.insert(0, str(Path(__file__).parents[3] / "ci" / "kernels"))
import plugin_kernels
import table as wheel  # the command of ci/

#: of the table for the installed one
VERSION = kernels.table_of("CPUExecutionProvider")


def of_type(name: str) -> DType:
    return next(dtype for dtype in DTYPES if dtype.name == name)


# -- element types ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_names_of_an_element_type_are_those_of_the_libraries(dtype):
    import torch

    assert helper.tensor_dtype_to_np_dtype(getattr(TensorProto, dtype.onnx)).name == dtype.name
    assert str(dtype.torch) == f"torch.{dtype.name}"
    assert dtype.eps == (torch.finfo(dtype.torch).eps if dtype.torch.is_floating_point else 0)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", getattr(TensorProto, dtype.onnx), [1])],
            [helper.make_tensor_value_info("y", getattr(TensorProto, dtype.onnx), [1])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    session = make_session(model.SerializeToString())
    assert session.get_inputs()[0].type == dtype.ort_type
    assert BY_ORT_TYPE[dtype.ort_type] is dtype


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_a_safetensors_header_calls_it_so(dtype, tmp_path):
    import torch
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2, dtype=dtype.torch)}, tmp_path / "x.safetensors")
    assert f'"dtype":"{dtype.safetensors}"' in (tmp_path / "x.safetensors").read_bytes().decode("latin-1")


# -- providers -------------------------------------------------------------------------------------


@pytest.fixture
def toy():
    """A provider that nobody has, as a record alone."""
    record = Provider(
        name="toy",
        label="the toy",
        ort_name="ToyExecutionProvider",
        package="onnxruntime-toy",
        device="toy",
        preferred={"attention": ("formula",)},
        unprofitable={"packing": "toys have one product"},
        load_failure=lambda error: f"the toy is broken ({error})",
    )
    register(record)
    yield record
    del PROVIDERS["toy"]


def test_a_provider_is_one_record(toy, monkeypatch):
    rows = {row["name"]: row["what"] for row in catalogue("providers")}
    assert rows["cpu"] == "loads"
    assert re.fullmatch("ToyExecutionProvider was asked for, but .* built without it; install .*-toy .*", rows["toy"])

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no battery")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [toy.ort_name])
    monkeypatch.setattr(onnxruntime, "InferenceSession", broken)
    with pytest.raises(PosexportError, match=r"did not load: the toy is broken \(no battery\)$"):
        make_session(b"", provider="toy")


@pytest.mark.usefixtures("toy")
def test_lowerings_and_passes_follow_its_record():
    target = Target("toy", 23)
    assert target.unprofitable("packing") == "toys have one product"
    assert target.waits_to_branch
    assert ATTENTION.ordered(target)[0].name == "formula"
    assert ATTENTION.ordered(Target("cpu", 23)) == ATTENTION.ordered(Target()) == list(ATTENTION.lowerings)


def test_a_lowering_refuses_by_the_kernels_of_a_provider(toy, monkeypatch):
    spec = AttentionSpec(mask="keys", causal=True, cache="append", head_size=16)
    target = Target("toy", 24)
    # no table has the toy's kernels
    said = "on the toy ONNX Runtime has no float32 kernel for GroupQueryAttention"
    assert GroupQuery().refusal(spec, target) == said
    row = Kernels("GroupQueryAttention", MICROSOFT, 1, None, ("float",))
    monkeypatch.setattr(kernels, "_by_operator", lambda _: {(toy.ort_name, MICROSOFT, row.operator): [row]})
    assert GroupQuery().refusal(spec, target) is None
    half = replace(target, dtype=of_type("float16"))
    assert GroupQuery().refusal(spec, half) == said.replace("float32", "float16")


def test_a_name_is_taken_once():
    for name in ("cpu", "portable"):
        with pytest.raises(ValueError, match=f"provider or target {name} already"):
            register(replace(CUDA, name=name))


def test_what_records_name_exists():
    known = {family.name: {each.name for each in family.lowerings} for family in FAMILIES}
    for provider in PROVIDERS.values():
        assert set(provider.unprofitable) <= {each.name for each in PASSES}
        for family, names in provider.preferred.items():
            assert set(names) <= known[family]


def test_targets_are_portable_and_the_providers_that_graphs_are_made_for():
    assert ("portable", *targets()) == target_names()
    with pytest.raises(PosexportError, match="unknown target 'gpu'; known: portable, cpu, cuda"):
        Target("gpu")


# -- kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "operator", "domain", "opset", "dtype", "has"),
    [
        (CUDA, "GroupQueryAttention", MICROSOFT, 1, "float32", False),
        (CUDA, "GroupQueryAttention", MICROSOFT, 1, "float16", True),
        (CPU, "GroupQueryAttention", MICROSOFT, 1, "float32", True),
        (CPU, "GroupQueryAttention", MICROSOFT, 1, "bfloat16", False),
        (CUDA, "Attention", "", 23, "bfloat16", True),
        (CUDA, "Attention", "", 22, "float32", False),  # the operator is of opset 23
        (CPU, "MatMul", "", 18, "float16", False),
        (CPU, "Where", "", 18, "float32", True),  # its first input is a condition
        (CPU, "NoSuchOperator", "", 18, "float32", False),
    ],
)
def test_a_provider_has_a_kernel_by_the_table(provider, operator, domain, opset, dtype, has):
    assert provider.has_kernel(operator, domain, opset, of_type(dtype)) is has


def test_a_row_computes_the_versions_that_onnx_runtime_says():
    closed, opened = Kernels("X", "", 13, 15, ("float",)), Kernels("X", "", 13, None, ("float",))
    assert [closed.computes(version) for version in (12, 13, 15, 16)] == [False, True, True, False]
    assert [opened.computes(version) for version in (12, 13, 14)] == [False, True, False]


def test_a_lowering_refuses_by_element_type_without_a_gpu():
    target = Target("cuda", 24)
    reason = target.needs_kernel("GroupQueryAttention", MICROSOFT)
    assert reason == "on CUDA ONNX Runtime has no float32 kernel for GroupQueryAttention"
    assert replace(target, dtype=of_type("float16")).needs_kernel("GroupQueryAttention", MICROSOFT) is None
    assert Target("portable", 24).needs_kernel("GroupQueryAttention", MICROSOFT) is None


def test_the_table_before_the_installed_version_is_used(monkeypatch):
    monkeypatch.setattr(kernels, "versions", lambda: ["1.31.1", "1.40.0"])
    chosen = {version: version_for(version) for version in ("1.26.0", "1.31.1", "1.39.2.dev3", "1.40.0", None)}
    assert chosen == {
        "1.26.0": "1.31.1",
        "1.31.1": "1.31.1",
        "1.39.2.dev3": "1.31.1",
        "1.40.0": "1.40.0",
        None: "1.40.0",
    }


def test_each_provider_has_the_newest_table_that_has_it(monkeypatch):
    """Of CUDA there is none for 1.32 yet: onnxruntime-gpu appears later."""
    chosen = {}
    for installed in ("1.30.0", "1.31.1", "1.32.0", "1.40.0", None):
        monkeypatch.setattr(kernels, "installed_version", lambda installed=installed: installed)
        kernels.table_of.cache_clear()
        chosen[installed] = kernels.table_of(CPU.ort_name), kernels.table_of(CUDA.ort_name)
    kernels.table_of.cache_clear()
    assert chosen["1.30.0"] == chosen["1.31.1"] == ("1.31.1", "1.31.1")
    assert chosen["1.32.0"] == chosen["1.40.0"] == chosen[None] == ("1.32.0", "1.31.1")


def test_the_cpu_of_1_32_has_attention_up_to_opset_24_alone():
    """Later ones it takes apart; 1.31 had no later one."""
    attention = [row for row in load_table("1.32.0").providers[CPU.ort_name].kernels if row.operator == "Attention"]
    versions_of = {(row.since, row.until) for row in attention if row.domain == ""}
    assert versions_of
    assert all(max(since, until or since) <= LAST_ATTENTION_OPSET for since, until in versions_of)
    target = Target("cpu", 25)
    assert "end at opset 24, the graph has 25" in target.no_attention
    assert target.no_attention is not None
    assert Target("cpu", 24).no_attention is None
    assert "needs opset 23" in Target("cpu", 22).no_attention


@pytest.mark.all(but=("encoder-absolute-portable", "encoder-t5-cpu", "decoder-rope-cuda"))
@pytest.mark.parametrize("target", ["portable", "cpu", "cuda"])
@pytest.mark.parametrize("model", ["encoder-absolute", "encoder-t5", "decoder-rope"])
def test_no_graph_asks_for_a_later_attention(model, target):
    def attention(opset):
        made = (
            source(model.partition("-")[2])
            if model.startswith("encoder")
            else builtin_source(
                model, task=None, settings_given=("layers=1", "hidden=20", "heads=5", "kv_heads=1", "vocab=61")
            )
        )
        graph = _lowered(made, recipe(target=target, opset=opset), None, BUNDLE).model
        nodes = [node for each in (graph.graph, *graph.functions.values()) for node in each.all_nodes()]
        return [node for node in nodes if node.op_type == "Attention" and not node.domain]

    assert attention(24) or target != "portable" or model == "decoder-rope"
    with contextlib.suppress(PosexportError):  # an opset that this PyTorch does not write
        assert not attention(25)


@pytest.mark.parametrize("opset", [25, 26, 28])
def test_lowerings_refuse_a_later_attention(opset):
    spec = AttentionSpec(mask="keys", causal=False, cache="none", head_size=16)
    by_name = {each.name: each for each in ATTENTION.lowerings}
    for target in (Target("portable", opset), Target("cpu", opset), Target("cuda", opset)):
        assert f"end at opset 24, the graph has {opset}" in by_name["attention"].refusal(spec, target)
        kept = replace(spec, kept_known=True)
        assert f"end at opset 24, the graph has {opset}" in by_name["kept-keys"].refusal(kept, target)


def runs(operator: str, dtype: DType) -> bool:
    """Whether the installed ONNX Runtime opens a model of one such node on the CPU."""
    kind = getattr(TensorProto, dtype.onnx)
    inputs = ["x", "x"] if operator in ("Add", "MatMul", "Pow") else ["x"]
    node = helper.make_node(operator, inputs, ["y"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, [2, 2])],
        [helper.make_tensor_value_info("y", kind, [2, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU.ort_name])
    except binding.NotImplemented:
        return False
    return True


@pytest.mark.skipif(onnxruntime.__version__ != VERSION, reason="the newest table is of another ONNX Runtime")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bfloat16"])
@pytest.mark.parametrize("operator", ["Add", "MatMul", "Pow", "Erf", "Softmax", "Neg", "Sigmoid"])
def test_models_of_one_node_open_where_the_table_has_a_kernel(operator, dtype):
    schema = onnx.defs.get_schema(operator, 18)
    allowed = next(each.allowed_type_strs for each in schema.type_constraints if each.type_param_str == "T")
    if of_type(dtype).ort_type not in allowed:
        assert not CPU.has_kernel(operator, "", 18, of_type(dtype))
    else:
        assert runs(operator, of_type(dtype)) == CPU.has_kernel(operator, "", 18, of_type(dtype))


@pytest.fixture(scope="module")
def table() -> KernelTable:
    return load_table(VERSION)


@pytest.mark.skipif(onnxruntime.__version__ != VERSION, reason="the newest table is of another ONNX Runtime")
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="the registries are read with cc"
)
def test_the_table_is_what_the_wheel_registers(table):
    version, rows = wheel.registered()
    assert version == table.onnxruntime
    for name, provider in table.providers.items():
        if name in rows:  # a wheel for the CPU has no CUDA
            assert rows[name] == provider.kernels
    assert CPU.ort_name in rows


def test_what_other_accounts_say_otherwise_is_in_the_table(table):
    cuda = table.providers[CUDA.ort_name]
    assert [len(provider.disagreements) for provider in table.providers.values()] == [1, 2]
    published = next(lines for account, lines in cuda.disagreements.items() if "OperatorKernels.md" in account)
    assert "Sin 7: registered up to 21, there up to any" in published
    rows = [Kernels("Sin", "", 7, None, ("float",)), Kernels("Cos", "", 7, 21, ("float", "double"))]
    own = [Kernels("Sin", "", 7, 21, ("float",)), Kernels("Cos", "", 7, 21, ("float", "float16"))]
    assert list(wheel.differences_from_published(own, [*rows, Kernels("Tan", "", 7, 21, ("float",))])) == [
        "Sin 7: registered up to 21, there up to any",
        "Cos 7: registered alone float16; there alone double",
        "Tan 7: not registered",
    ]


def test_kernel_classes_are_read_by_operator_and_type(tmp_path):
    names = [
        "N11onnxruntime4cuda3AddIfEE",
        "N11onnxruntime4cuda3AddINS_9MLFloat16EEE",
        "N11onnxruntime7contrib4cuda19GroupQueryAttentionINS_8BFloat16ES3_EE",
        "N11onnxruntime4cuda6GatherE",
    ]
    (tmp_path / "lib.so").write_bytes(b"\0" + b"\0".join(name.encode() for name in names) + b"\0")
    types = wheel.classes(tmp_path / "lib.so")
    assert types == {("", "Add"): {"float", "float16"}, (MICROSOFT, "GroupQueryAttention"): {"bfloat16"}}
    rows = [Kernels("Add", "", 14, None, ("float", "double")), Kernels("Gather", "", 13, None, ("float",))]
    said = list(wheel.differences_from_classes(rows, tmp_path / "lib.so"))
    assert said == ["Add: registered alone double; there alone float16"]


def test_kernels_of_a_plugin_are_read_from_its_calls():
    calls = """
        type 0xa 1
        type 0xb 10
        create 0x1
        operator 0x1 Gather
        domain 0x1
        constraint 0x1 T 0xa 0xb
        type 0xc 7
        constraint 0x1 Tind 0xc
        versions 0x1 13 2147483647
        create 0x1
        operator 0x1 MatMulNBits
        domain 0x1 com.microsoft
        versions 0x1 1 1
    """
    lines = [line.strip() for line in calls.strip().splitlines()]
    assert list(plugin_kernels.read(lines, "Toy")) == [
        ("Toy", "", "Gather", 13, 2**31 - 1, {"T": ["tensor(float)", "tensor(float16)"], "Tind": ["tensor(int64)"]}),
        ("Toy", MICROSOFT, "MatMulNBits", 1, 1, {}),
    ]


def test_webgpu_has_a_table_by_its_plugin():
    (version,) = [name for name in kernels.versions() if WEBGPU.ort_name in load_table(name).providers]
    webgpu = load_table(version).providers[WEBGPU.ort_name]
    assert re.fullmatch(rf"{WEBGPU.package} \d+\.\d+\.\d+", webgpu.plugin)
    operators = {row.operator for row in webgpu.kernels}
    assert {"MatMul", "MatMulNBits", "Attention"} <= operators
    assert not {"MatMulInteger", "DynamicQuantizeLinear"} & operators
    assert (
        wheel.as_text(load_table(version))
        == (Path(kernels.__file__).parent / f"kernel_tables/{version}.json").read_text()
    )


def test_one_table_is_small_and_says_where_it_is_from(table):
    path = Path(kernels.__file__).parent / "kernel_tables" / f"{VERSION}.json"
    assert path.stat().st_size < 300_000
    assert wheel.as_text(table) == path.read_text()
    for name, provider in table.providers.items():
        assert VERSION in provider.source, name
    assert FLOAT32.ort in table.providers[CPU.ort_name].kernels[0].dtypes
    assert np.unique([row.domain for row in table.providers[CUDA.ort_name].kernels]).tolist() == ["", MICROSOFT]
