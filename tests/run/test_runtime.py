"""Sessions on the provider that was asked for or none; nodes that ran elsewhere, by name."""

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from posexport.base.targets import cuda
from posexport.base.targets.providers import PROVIDERS
from posexport.errors import PosexportError
from posexport.run import providers
from posexport.run.placement import Placed, placement, strays
from posexport.run.providers import LEVELS, make_session
from posexport.run.wrapped_session import refusal
from tests.tiny_bundle import LIMIT, tiny_model
from tests.tolerances import agree

CPU, CUDA = PROVIDERS["cpu"].ort_name, PROVIDERS["cuda"].ort_name


def feeds(length: int = 7, batch: int = 2) -> dict[str, np.ndarray]:
    ids = np.arange(batch * length, dtype=np.int64).reshape(batch, length) % 13
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def cuda_devices() -> int:
    """CUDA devices of this machine, asked of the driver itself."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


# -- sessions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("as_path", [True, False])
def test_every_level_gives_the_same_and_keeps_the_guard(tmp_path, level, as_path):
    data = tiny_model().SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    session = make_session(tmp_path / "model.onnx" if as_path else data, level=level, threads=1, spinning=False)
    assert session.get_providers() == [CPU]
    options = session.get_session_options()
    assert (
        options.graph_optimization_level.name
        == f"ORT_{'DISABLE_ALL' if level == 'disable' else f'ENABLE_{level.upper()}'}"
    )
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    right = make_session(data, level="disable").run(None, feeds())
    for got, wanted in zip(session.run(None, feeds()), right, strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(Exception, match="input longer than 11 positions") as caught:
        session.run(None, feeds(LIMIT + 1))
    assert refusal(caught.value) == "input longer than 11 positions"


@pytest.mark.parametrize("denormals", [True, False])
def test_denormals_are_kept_or_taken_as_nothing(denormals):
    # in a process of its own: the first session of a process would decide for the thread that made it
    code = (
        "import onnx.parser, numpy as np\n"
        "from posexport.run.providers import make_session\n"
        """text = '<ir_version: 10, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Mul(x, x) }'\n"""
        "model = onnx.parser.parse_model(text).SerializeToString()\n"
        f"session = make_session(model, threads=1, denormals={denormals})\n"
        "from posexport.run.wrapped_session import denormals_as_zero\n"
        "from contextlib import nullcontext\n"
        f"with nullcontext() if {denormals} else denormals_as_zero():\n"
        "    square = session.run(None, {'x': np.full(3, 1e-21, np.float32)})[0]\n"
        "print(bool((square.view(np.int32) != 0).all()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(denormals)


def test_levels_are_all_that_onnx_runtime_has():
    known = {f"ORT_{'DISABLE_ALL' if level == 'disable' else f'ENABLE_{level.upper()}'}" for level in LEVELS}
    assert known == set(onnxruntime.GraphOptimizationLevel.__members__)


def newer(**changes: int) -> bytes:
    model = tiny_model()
    if "opset" in changes:
        model.opset_import[0].version = changes["opset"]
    else:
        model.ir_version = changes["ir_version"]
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"provider": "gpu"}, "unknown provider 'gpu'; known: cpu, cuda"),
        ({"level": "most"}, "unknown optimisation level 'most'; known: disable, basic"),
        ({"threads": -1}, "threads must be 0 .* got -1"),
        ({"model": Path("no/such.onnx")}, "no/such.onnx does not exist"),
        ({"model": b"garbage"}, "the model is not an ONNX model"),
        ({"model": b""}, "the model is not an ONNX model|does not open the model"),
        ({"model": newer(ir_version=99)}, r"IR version 99, the installed onnxruntime \S+ reads up to \d+: upgrade"),
        ({"model": newer(opset=40)}, r"opset 40 of ai.onnx, the installed onnxruntime \S+ runs up to \d+: upgrade"),
    ],
)
def test_what_cannot_be_opened_is_a_sentence(options, says, capfd):
    with pytest.raises(PosexportError, match=says):
        make_session(**{"model": tiny_model().SerializeToString(), **options})
    assert capfd.readouterr() == ("", "")


def test_a_build_without_the_provider_says_what_to_install(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    with pytest.raises(PosexportError, match="is built without it; install onnxruntime-gpu"):
        make_session(tiny_model().SerializeToString(), provider="cuda")


@pytest.mark.skipif(
    cuda_devices() > 0, reason="this machine has a CUDA device: the refusal is tested where there is none"
)
def test_cuda_without_its_libraries_names_what_is_missing(capfd, monkeypatch):
    monkeypatch.setattr(providers, "_quiet", True)  # as on the command line; a library leaves the log level alone
    with pytest.raises(PosexportError, match=r"^CUDAExecutionProvider was asked for") as caught:
        make_session(tiny_model().SerializeToString(), provider="cuda")
    assert capfd.readouterr() == ("", "")
    missing = (
        r"the library lib\S+\.so\S* is missing|the libraries lib.* are missing: pip install nvidia-"
        r"|no usable CUDA device|the NVIDIA driver|built without it"
    )
    assert re.search(missing, str(caught.value))
    make_session(tiny_model().SerializeToString())  # and the CPU still works


@pytest.mark.cuda
@pytest.mark.skipif(cuda_devices() == 0, reason="no CUDA device on this machine")
def test_cuda_is_what_runs_where_it_is_asked_for():
    data = tiny_model().SerializeToString()
    session = make_session(data, provider="cuda")
    assert session.get_providers()[0] == CUDA
    for got, wanted in zip(session.run(None, feeds()), make_session(data).run(None, feeds()), strict=True):
        agree(got, wanted, "operator", np.float32)
    assert strays(placement(data, feeds(), "cuda"), CUDA) == []


def test_a_provider_that_silently_falls_back_is_an_error(monkeypatch):
    """ONNX Runtime as it behaves by default: it answers with a session on the CPU."""
    data = tiny_model().SerializeToString()
    real = onnxruntime.InferenceSession

    def falling_back(model, options, **_):
        return real(model, options, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", falling_back)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda **_: None, raising=False)
    monkeypatch.setattr(cuda, "missing", lambda: "the library libcudart.so.13 is missing")
    with pytest.raises(
        PosexportError, match=r"CUDAExecutionProvider was asked for and did not load: .*libcudart.so.13"
    ):
        make_session(data, provider="cuda")


def test_a_device_failure_at_creation_is_named(monkeypatch):
    def failing(*_, **__):
        raise RuntimeError("CUDA failure 100: no CUDA-capable device is detected ; GPU=-1 ; hostname=x")

    monkeypatch.setattr(onnxruntime, "InferenceSession", failing)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda **_: None, raising=False)
    monkeypatch.setattr(cuda, "missing", lambda: None)
    with pytest.raises(PosexportError, match=r"did not load: there is no CUDA device, .*\(CUDA failure 100\)$"):
        make_session(b"", provider="cuda")


def test_float32_on_cuda_is_asked_for_as_float32(monkeypatch):
    asked = {}

    def recording(*_, **options):
        asked.update(options)
        raise RuntimeError("enough")

    monkeypatch.setattr(onnxruntime, "InferenceSession", recording)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda **_: None, raising=False)
    monkeypatch.setattr(cuda, "missing", lambda: None)
    with pytest.raises(PosexportError, match="enough"):
        make_session(b"", provider="cuda")
    assert asked["providers"] == [(CUDA, {"use_tf32": "0"})]
    assert asked["enable_fallback"] == 0


# -- placement -------------------------------------------------------------------------------------


def test_placement_names_every_node_that_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    placed = placement(tiny_model().SerializeToString(), feeds(), level="disable")
    model = tiny_model()
    assert {one.node: one.op_type for one in placed} == {node.name: node.op_type for node in model.graph.node}
    assert {one.provider for one in placed} == {CPU}
    made = {one.node: one.outputs for one in placed}
    assert made["the_token"] == (("float", (2, 7, 3)),)
    assert made["the_target"] == (("int64", (2,)),)
    assert list(tmp_path.iterdir()) == []


def test_nothing_strays_from_the_provider_that_ran_it():
    assert strays(placement(tiny_model().SerializeToString(), feeds()), CPU) == []


def test_strays_are_all_nodes_but_shape_arithmetic():
    placed = placement(tiny_model().SerializeToString(), feeds(), level="disable")
    work = {"token", "type", "scaled", "scaled3", "typed", "mask", "mask3", "last_hidden_state", "sentence_embedding"}
    assert {one.node for one in strays(placed, CUDA)} == {
        *(f"the_{name}" for name in work),
        "input longer than 11 positions",  # it moves the token ids themselves
    }
    said = [str(one) for one in strays(placed, CUDA)]
    assert "the_token (Gather, CPUExecutionProvider, gives float[2, 7, 3])" in said


@pytest.mark.parametrize(
    ("op_type", "outputs", "stray"),
    [
        ("Shape", [("int64", (3,))], False),
        ("Gather", [("int64", ())], False),
        ("Range", [("int64", (4096,))], False),
        ("Range", [("int64", (65537,))], True),
        ("Add", [("int64", (2, 7))], True),
        ("Greater", [("bool", (1,))], False),
        ("Cast", [("float", (1,))], False),
        ("Cast", [("float", (2,))], True),
        ("Gather", [("float", (7, 3))], True),
        ("MatMul", [("int64", (1,))], True),
        ("Split", [("int64", (1,)), ("float", (9,))], True),
        ("Gather", [], True),
    ],
)
def test_the_rule_for_shape_arithmetic(op_type, outputs, stray):
    one = Placed("n", op_type, CPU, tuple(outputs))
    assert strays([one], CUDA) == ([one] if stray else [])
    assert strays([one], CPU) == []


def test_copies_between_devices_stray_if_they_move_more_than_shapes():
    small = Placed("Memcpy_1", "MemcpyToHost", CUDA, (("int64", (2,)),))
    large = Placed("Memcpy_2", "MemcpyFromHost", CUDA, (("float", (2, 7, 3)),))
    ids = Placed("Memcpy_3", "MemcpyToHost", CUDA, (("int64", (2, 7)),))
    assert strays([small, large, ids], CUDA) == [large, ids]


def test_a_profile_without_nodes_is_not_taken_for_a_clean_one(monkeypatch):
    from posexport.run import placement as module

    real = module.make_session

    class Mute:
        def __init__(self, session, profile):
            self.session, self.profile = session, profile

        def run(self, *arguments):
            return self.session.run(*arguments)

        def get_outputs(self):
            return self.session.get_outputs()

        def end_profiling(self):
            path = Path(self.session.end_profiling())
            path.write_text(json.dumps([{"cat": "Session", "name": "model_run", "args": {}}]))
            return str(path)

    monkeypatch.setattr(module, "make_session", lambda model, **o: Mute(real(model, **o), o["profile"]))
    with pytest.raises(RuntimeError, match="names no node"):
        placement(tiny_model().SerializeToString(), feeds())


# -- imports ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import posexport; posexport.load; posexport.__version__",
            {"torch", "onnxruntime", "onnx", "numpy", "tokenizers"},
        ),
        ("import posexport.run.answer, posexport.run.placement, posexport.run.bundle.write", {"torch", "onnx"}),
        ("import posexport.cli.run", {"torch", "onnxruntime", "onnx", "numpy", "tokenizers"}),
    ],
)
def test_imports_are_light(statement, absent):
    root = Path(__file__).resolve().parents[2]
    code = f"import sys\n{statement}\nsys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert "posexport" in done.stdout.split()
    assert absent & set(done.stdout.split()) == set()


def test_the_tiny_model_is_a_model_that_plain_onnx_runtime_runs():
    onnx.checker.check_model(tiny_model(), full_check=True)
    session = onnxruntime.InferenceSession(tiny_model().SerializeToString(), providers=[CPU])
    assert session.run(None, feeds())[0].shape == (2, 7, 3)
