"""A bundle's sample says on any provider whether answers are right, and which node is the first that is not."""

import shutil
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest

import posexport
from posexport.base.spec import BATCH, SEQUENCE, InputSpec, OutputSpec
from posexport.base.targets import providers
from posexport.base.targets.providers import CPU, PROVIDERS, WEBGPU, Provider, provider_named, register, targets
from posexport.base.targets.target import target_names
from posexport.errors import PosexportError
from posexport.proof.grid.point import GridPoint
from posexport.proof.sample.locate import _error
from posexport.proof.sample.writer import _choice, read
from posexport.run import providers as sessions
from posexport.run.placement import Placed, strays
from tests.small import proven

SIZES = {"layers": 2, "hidden": 20, "feedforward": 37, "vocab": 61}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "bundle"
    proven("encoder-absolute", folder, settings={**SIZES, "max_positions": 20})
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder") / "bundle"
    proven("decoder-rope", folder, settings=SIZES, lengths=[2, 9, 17])
    return folder


def break_kernels(monkeypatch: pytest.MonkeyPatch, provider: Provider, operator: str, **when: Any) -> None:
    """From now on sessions on ``provider`` compute the last ``operator`` of a graph wrongly, as a bad driver would."""
    plain = sessions.make_session

    def make(model: Path | bytes, **options: Any) -> onnxruntime.InferenceSession:
        asked = provider_named(options.get("provider", CPU.name))
        if asked is not provider or any(options.get(key) != value for key, value in when.items()):
            return plain(model, **{**options, "provider": CPU.name})
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        proto = onnx.inliner.inline_local_functions(proto)
        node = [node for node in proto.graph.node if node.op_type == operator][-1]
        right = node.output[0]
        node.output[0] = f"{right}_wrong"
        factor = onnx.helper.make_tensor("factor", onnx.TensorProto.FLOAT, [], [1.01])
        proto.graph.initializer.append(factor)
        after = list(proto.graph.node).index(node) + 1
        proto.graph.node.insert(after, onnx.helper.make_node("Mul", [f"{right}_wrong", "factor"], [right]))
        return plain(proto.SerializeToString(), **{**options, "provider": CPU.name})

    monkeypatch.setattr(sessions, "make_session", make)


@pytest.fixture
def toy() -> Any:
    """A provider whose kernels are the CPU's, but for those that a test breaks."""
    record = Provider(
        name="toy", label="the toy", ort_name=CPU.ort_name, package="toy", types=frozenset({"float32"}), built_in=True
    )
    yield register(record)
    del PROVIDERS["toy"]


# -- the answers -----------------------------------------------------------------------------------


def test_an_open_session_checks_itself(encoder: Path, decoder: Path) -> None:
    for bundle in (encoder, decoder):
        report = posexport.load(bundle).self_check()
        assert report
        assert report.scope == "sample"
        assert "passed" in str(report)
        assert report.failure_location is None


def test_a_session_that_answers_wrongly_says_where(encoder: Path, monkeypatch: Any) -> None:
    break_kernels(monkeypatch, CPU, "Erf")
    report = posexport.load(encoder).self_check()
    assert not report
    # the CPU is wrong: NumPy says what is right
    assert "(Erf), in encoder.groups.1.feedforward: off by 1.0e-02" in report.failure_location
    assert "Right is what NumPy computes (onnx.reference)" in report.failure_location


@pytest.mark.parametrize(
    ("operator", "module"),
    [
        ("Gather", "encoder.embeddings"),
        ("Softmax", "encoder.groups.1.attention"),
        ("LayerNormalization", "encoder.groups.1.feedforward_residual.norm"),
    ],
)
def test_verify_names_the_first_wrong_node(encoder: Path, toy: Provider, monkeypatch: Any, operator: str, module: str):
    break_kernels(monkeypatch, toy, operator)
    report = posexport.verify(encoder, provider="toy")
    assert not report.passed
    assert f"({operator}" in report.failure_location
    assert f", in {module}: off by" in report.failure_location
    assert "Right is what the CPU provider computes here, whose answers agree" in report.failure_location
    assert report.failure_location in report.describe()


def test_an_optimisation_is_named_where_single_nodes_are_right(encoder: Path, toy: Provider, monkeypatch: Any) -> None:
    break_kernels(monkeypatch, toy, "Erf", level="all")
    report = posexport.verify(encoder, provider="toy")
    assert not report.passed
    assert "values are right one by one, the answer is wrong from level all on" in report.failure_location


def test_what_only_cached_calls_get_wrong_is_located_too(decoder: Path, toy: Provider, monkeypatch: Any) -> None:
    break_kernels(monkeypatch, toy, "Concat")
    report = posexport.verify(decoder, provider="toy")
    assert not report.passed
    assert "It starts at node" in report.failure_location


def test_a_file_that_is_wrong_itself_is_no_matter_of_the_machine(encoder: Path, tmp_path: Path) -> None:
    """Values of the graph cannot say what is right then."""
    shutil.copytree(encoder, tmp_path / "altered")
    model = onnx.load(tmp_path / "altered" / "model.onnx")
    table = next(each for each in model.graph.initializer if each.name.endswith("encoding.table"))
    values = onnx.numpy_helper.to_array(table) * 1.01
    table.CopyFrom(onnx.numpy_helper.from_array(values, table.name))
    onnx.save(model, tmp_path / "altered" / "model.onnx")
    report = posexport.load(tmp_path / "altered", check=False).self_check()
    assert not report
    assert "what NumPy computes (onnx.reference) is wrong too; verify it with --against SOURCE" in (
        report.failure_location
    )


def test_errors_of_single_values() -> None:
    ones = np.ones((2, 3), np.float32)
    assert _error(ones, ones) == 0
    assert _error(ones * 1.5, ones) == 0.5
    assert _error(ones[:1], ones) == np.inf
    masked = np.where(np.eye(2, 3) > 0, np.float32(-np.inf), ones)
    assert _error(masked, masked) == 0
    assert _error(np.where(np.isinf(masked), np.float32(-3e38), masked), masked) == 0
    nothing = np.full((2, 3), np.nan, np.float32)
    assert _error(nothing, nothing) == 0
    assert not _error(nothing, ones) <= 1
    assert _error(np.array([1, 2]), np.array([1, 3])) == 0.5


# -- the sample ------------------------------------------------------------------------------------


def test_one_point_is_beyond_the_limit_one_padded_one_through_the_cache(encoder: Path, decoder: Path) -> None:
    header, _ = read(encoder / "parity.safetensors")
    assert [point.length for point in header.refusals] == [21]
    assert any(point.padding != "none" for point in header.points)
    header, _ = read(decoder / "parity.safetensors")
    assert any(point.padding != "none" for point in header.points)
    assert any(len(point.calls) > 1 for point in header.points)
    assert len({point.length for point in header.points}) == 3


def test_the_cache_replaces_the_shortest_point_that_it_can() -> None:
    points = [GridPoint(batch=2, length=length, padding=p) for length in (1, 9, 17) for p in ("none", "left")]
    points += [GridPoint(batch=2, length=17, calls=(14, 1, 1, 1)), GridPoint(batch=2, length=9, calls=(6, 1, 1, 1))]
    inputs = [InputSpec(name="input_ids", dtype="int64", axes=[BATCH, SEQUENCE], role="tokens")]
    outputs = [OutputSpec(name="logits", axes=[BATCH, SEQUENCE, 7])]
    chosen, _ = _choice(points, inputs, outputs, 7)
    assert [point.length for point in chosen if point.calls] == [9]
    assert {point.length for point in chosen} == {1, 9, 17}


# -- providers that are plug-ins -------------------------------------------------------------------


def test_a_plug_in_is_a_provider_and_may_be_a_target() -> None:
    assert {"webgpu", "openvino"} <= set(PROVIDERS)
    assert set(target_names()) == {"portable", *targets()}
    assert {"webgpu", "openvino"} & set(target_names()) == {"openvino"}
    with pytest.raises(PosexportError, match="target must be one of portable, cpu, cuda, openvino, got 'webgpu'"):
        posexport.convert("encoder-nope", "never", target="webgpu")


@pytest.mark.parametrize("name", ["webgpu", "openvino"])
def test_one_that_is_not_installed_is_a_sentence(encoder: Path, monkeypatch: Any, name: str) -> None:
    monkeypatch.setattr(sessions, "is_plugin", lambda _: False)
    record = PROVIDERS[name]
    with pytest.raises(PosexportError, match=rf"{record.ort_name} was asked for.*pip install 'posexport\[{name}\]'"):
        posexport.load(encoder, provider=name)
    with pytest.raises(PosexportError, match="was asked for"):
        posexport.verify(encoder, provider=name)


def test_one_without_a_device_says_what_it_needs(monkeypatch: Any) -> None:
    registered = []
    module = types.SimpleNamespace(get_library_path=lambda: "lib.so")
    monkeypatch.setattr(providers, "_registered", set())
    monkeypatch.setattr(providers.importlib, "import_module", lambda _: module)
    add = lambda *_: None  # noqa: E731 (an attribute that is there)
    monkeypatch.setattr(onnxruntime.SessionOptions, "add_provider_for_devices", add, raising=False)
    monkeypatch.setattr(
        onnxruntime, "register_execution_provider_library", lambda *a: registered.append(a), raising=False
    )
    monkeypatch.setattr(onnxruntime, "get_ep_devices", list, raising=False)
    for _ in range(2):
        with pytest.raises(PosexportError, match="finds no device here; it needs a GPU with a driver for Vulkan"):
            providers.devices(WEBGPU)
    assert registered == [(WEBGPU.ort_name, "lib.so")]
    monkeypatch.delattr(onnxruntime.SessionOptions, "add_provider_for_devices")
    with pytest.raises(PosexportError, match=r"needs onnxruntime 1\.24 or newer"):
        providers.devices(WEBGPU)


def test_openvino_computes_in_float32_and_in_as_many_threads_as_asked() -> None:
    record = PROVIDERS["openvino"]
    assert record.session_options(None)["load_config"] == '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'
    assert record.pool(0) == {}
    assert record.pool(3) == {"num_of_threads": "3"}
    assert CPU.pool(3) == {}


def test_a_provider_that_takes_no_defaults_asks_for_every_input(decoder: Path, toy: Provider, monkeypatch: Any) -> None:
    """Left in, OpenVINO takes them for constants."""
    assert not PROVIDERS["openvino"].takes_defaults
    monkeypatch.setitem(PROVIDERS, "toy", replace(toy, takes_defaults=False))
    taken = {value.name for value in sessions.make_session(decoder / "model.onnx", provider="toy").get_inputs()}
    assert "position_ids" in taken
    assert "position_ids" not in {value.name for value in sessions.make_session(decoder / "model.onnx").get_inputs()}
    assert posexport.verify(decoder, provider="toy").passed
    prompts, config = [[5, 3, 8], [2, 7]], {"max_new_tokens": 4}
    cpu, toy_ = (posexport.load(decoder, provider=name).generate(prompts, **config) for name in ("cpu", "toy"))
    assert [one.tokens for one in cpu.completions] == [one.tokens for one in toy_.completions]


def test_integers_on_the_host_are_no_strays_where_a_provider_has_none() -> None:
    def ran(op_type: str, *dtypes: str) -> Placed:
        return Placed(op_type, op_type, CPU.ort_name, tuple((dtype, (2, 3, 5)) for dtype in dtypes))

    ours = [ran("CumSum", "int64"), ran("Less", "bool"), ran("Cast", "float"), ran("MemcpyFromHost", "float")]
    theirs = [ran("MatMul", "float"), ran("Softmax", "float16"), ran("TopK", "float", "int64")]
    assert strays([*ours, *theirs], WEBGPU.ort_name, integers_on_host=True) == theirs
    assert strays([*ours, *theirs], WEBGPU.ort_name) == [*ours, *theirs]
