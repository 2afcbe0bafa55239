"""Sessions on CUDA: what users may choose, where caches are, and one sentence for every machine that cannot.

Errors are those of ONNX Runtime's real CUDA provider on the dry run's stand-ins, which answer what a full card, an old
driver or a held card answer; and messages as they were recorded.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import on_stand_in
import onnx.parser
import pytest
from click.testing import CliRunner

import posexport
from posexport.base.targets import cuda, cuda_libraries
from posexport.base.targets.cuda import explained
from posexport.base.targets.providers import CPU, CUDA, Provider
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.inspect.bench.workers.job import Job
from posexport.inspect.bench.workers.onnx import Graph
from posexport.run.captured import MOST, CapturedSession
from posexport.run.ort_values import run_placed, to_value
from posexport.run.providers import check_loads, make_session
from posexport.run.wrapped_session import refusal
from posexport.serve.engines.service import Service
from tests.on_stand_in import DEFAULTED, asked, environment, libraries
from tests.tiny_bundle import VOCAB, write_bundle

dry = pytest.mark.skipif(libraries.missing() is not None, reason=libraries.missing() or "")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    path = write_bundle(tmp_path_factory.mktemp("cuda") / "bundle", texts=True)
    (path.parent / "inputs.json").write_text('{"input_ids": [[1, 2, 3]]}')
    return path


def on_cuda(bundle: Path, fail: str = "", *options: str) -> subprocess.CompletedProcess[str]:
    given = ["run", str(bundle), "--inputs", str(bundle.parent / "inputs.json"), "--provider", "cuda", *options]
    command = [sys.executable, "-m", "posexport", *given]
    return subprocess.run(command, env=environment(fail), capture_output=True, text=True, check=False, timeout=60)


# -- machines that cannot ---------------------------------------------------------------------------


@dry
@pytest.mark.all(but=("cudaMalloc",))
@pytest.mark.parametrize(
    ("fail", "said"),
    [
        ("cudaSetDevice:35", "the NVIDIA driver is too old for the CUDA"),
        ("cudaSetDevice:46", "the card is held by another process"),
        ("cudaMalloc:2", "the card's memory is full: nvidia-smi lists what runs on it"),
    ],
)
def test_a_card_that_is_not_to_be_had_is_one_sentence_and_no_answer_of_the_cpu(bundle, fail, said):
    done = on_cuda(bundle, fail)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@dry
def test_a_limit_of_memory_is_kept(bundle):
    done = on_cuda(bundle, "", "--provider-option", "memory_limit=1KB")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the memory_limit that was given does not hold it" in done.stderr


@dry
@pytest.mark.skipif(sys.platform != "linux", reason="names of Linux's libraries")
def test_libraries_in_wheels_elsewhere_are_found(bundle, tmp_path):
    """As where PyTorch's wheels are the machine's and onnxruntime-gpu is installed into a folder of one's own."""
    places = {"libcudnn": "site/nvidia/cudnn/lib", "libcuda.": "driver"}
    for library in libraries.libraries().glob("lib*.so.*"):
        folder = tmp_path / next(
            (p for name, p in places.items() if library.name.startswith(name)), "site/nvidia/cu13/lib"
        )
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, folder)
    here = {**environment(), "LD_LIBRARY_PATH": str(tmp_path / "driver")}
    command = [sys.executable, "-m", "posexport", "run", str(bundle), "--provider", "cuda"]
    command += ["--inputs", str(bundle.parent / "inputs.json")]
    for site, code in ((tmp_path / "nowhere", 2), (tmp_path / "site", 0)):
        told = {**here, "PYTHONPATH": f"{here['PYTHONPATH']}:{site}"}
        done = subprocess.run(command, env=told, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == code, done.stderr


def test_missing_libraries_are_named_with_their_packages():
    """Of this machine, and as glibc says it: a loader names one, all that are missing are told."""
    recorded = "libcudnn.so.9: cannot open shared object file: No such file or directory"
    assert cuda_libraries.named(recorded) == "libcudnn.so.9"
    assert cuda_libraries.absent("libcudnn.so.9", 13, lambda _: True) == ["libcudnn.so.9"]
    assert "nvidia-cudnn-cu13" in cuda_libraries.sentence(["libcudnn.so.9"], 13)
    absent = cuda_libraries.absent("libcublasLt.so.12", 12, lambda name: name == "libcurand.so.10")
    said = cuda_libraries.sentence(absent, 12)
    assert said.startswith("the libraries libcublasLt.so.12, libcudart.so.12, libcublas.so.12")
    assert "pip install nvidia-cublas-cu12 nvidia-cuda-runtime-cu12 nvidia-cufft-cu12" in said
    assert "curand" not in said
    assert cuda.unloadable("libcuda.so.1: cannot open shared object file: No such file", 13).endswith("the driver")
    assert cuda.unloadable("libodd.so.3: cannot open shared object file", 0).startswith("the library libodd.so.3 is")
    assert cuda.unloadable("wrong ELF class", 13) == "wrong ELF class"
    wrapped = "Failed to load library libonnxruntime_providers_cuda.so with error: libcublas.so.13: cannot open shared"
    assert cuda_libraries.named(f"{wrapped} object file: No such file or directory") == "libcublas.so.13"


def test_onnxruntime_gpu_without_libraries_says_which():
    try:
        check_loads("cuda")
    except PosexportError as err:
        if "built without it" in str(err):
            pytest.skip("onnxruntime-gpu is not installed")
        said = str(err)
    else:
        pytest.skip("CUDA loads here")
    assert "driver" in said or ("did not load: the librar" in said and "pip install nvidia-" in said)


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=x ; file=y.cc ; line=4 ; expr=cudaMalloc", "memory is full"),
        ("CUDA failure 100: no CUDA-capable device is detected ; GPU=-1 ;", "CUDA_VISIBLE_DEVICES"),
        ("CUDA failure 209: no kernel image is available for execution on the device ; GPU=0 ;", "has no kernels for"),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; hostname=x", "memory is full"),
        ("CUDNN failure 5003: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0", "CUDNN failure 5003, CUDNN_STATUS_EXECUTION_F"),
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", "CUDA failure 700, an illegal memory"),
    ],
)
def test_recorded_failures_of_cuda_are_told(recorded, said):
    assert said in str(explained(recorded))
    assert said in str(refusal(RuntimeError(recorded)))


def test_what_is_no_failure_of_cuda_is_not_told_as_one():
    assert explained("Unexpected input data type") is None
    text = "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 4294967296"
    assert "smaller batch" in str(refusal(RuntimeError(text)))


# -- choices ----------------------------------------------------------------------------------------


def test_choices_are_told_to_onnxruntime():
    given = {"memory_limit": "1.5GB", "arena_growth": "exact", "tf32": True, "stream": 0x7F00, "graph": "off"}
    assert CUDA.session_options(given) == {
        "gpu_mem_limit": "1500000000",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "1",
        "user_compute_stream": "32512",
        "enable_cuda_graph": "0",
    }
    assert CUDA.session_options(None) == {"use_tf32": "0"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tf32": "maybe"}, "tf32 of CUDA takes on or off, got 'maybe'"),
        ({"memory_limit": "many"}, "memory_limit of CUDA takes bytes, or a size such as 4GB, got 'many'"),
        ({"memory_limit": 0}, "got 0"),
        ({"stream": "-1"}, "stream of CUDA takes a cudaStream_t as a number, got '-1'"),
        ({"arena": "x"}, "CUDA has no option 'arena'; it has memory_limit, arena_growth, tf32, stream, graph"),
    ],
)
def test_a_bad_choice_is_one_sentence(given, said):
    with pytest.raises(PosexportError) as info:
        CUDA.session_options(given)
    assert said in str(info.value)


def test_the_cpu_has_no_choices(bundle):
    with pytest.raises(PosexportError, match="the CPU has no option 'tf32'; it has none; name another provider"):
        posexport.load(bundle, provider_options={"tf32": True})
    assert CPU.session_options({}) == {}
    with pytest.raises(PosexportError, match="the CPU has no option 'graph'"):
        Service(bundle, provider_options={"graph": "on"})


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("tf32", "--provider-option takes KEY=VALUE, got 'tf32'; for example tf32=on"),
        ("tf32=on", "the CPU has no option 'tf32'"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--inputs", "inputs.json"],
        ["generate", "--prompt", "a"],
        ["verify"],
        ["bench"],
        ["deploy", "--to", "mlserver", "-o", "out.json"],
    ],
    ids=lambda words: words[0],
)
def test_the_command_line_takes_choices_too(bundle, words, pair, said):
    given = [str(bundle.parent / word) if word.endswith(".json") else word for word in words[1:]]
    done = CliRunner().invoke(group, [words[0], str(bundle), *given, "--provider-option", pair])
    assert isinstance(done.exception, PosexportError), done.output
    assert said in str(done.exception)


def test_a_session_that_holds_no_buffers_captures_nothing(bundle):
    """What `bench` and `verify` open."""
    for words in (["verify"], ["bench"]):
        done = CliRunner().invoke(group, [*words, str(bundle), "--provider", "cuda", "--provider-option", "graph=on"])
        assert isinstance(done.exception, PosexportError), done.output
        assert "graph=on is for posexport.load and run" in str(done.exception)


@pytest.fixture
def told(monkeypatch) -> list:
    """What sessions ask the provider of options for."""
    asked = []

    def told(_: Provider, options: Mapping[str, object] | None) -> dict[str, str]:
        asked.append(options)
        return {}

    monkeypatch.setattr(Provider, "session_options", told)
    return asked


@pytest.mark.all
@pytest.mark.parametrize("against", [False, True])
def test_options_reach_the_sessions_of_a_proof(tmp_path, told, against):
    small = {"layers": 1, "hidden": 20, "heads": 5, "feedforward": 8, "vocab": 61}
    assert posexport.convert("encoder-nope", tmp_path / "x", settings=small, lengths=[3]).good
    told.clear()
    source = {"against": "encoder-nope", "settings": small, "lengths": [3]} if against else {}
    assert posexport.verify(tmp_path / "x", provider_options={"x": 1}, **source).passed
    assert told.count({"x": 1}) > 1, "only checked, no session has them"


def test_options_reach_the_session_of_a_measurement(bundle, told):
    sizes = {"batch": 1, "past": 0, "new": 3, "runs": 1, "warmup": 0, "threads": 1, "vocab": VOCAB, "answer": ""}
    Graph(Job(model=str(bundle / "model.onnx"), provider_options={"x": 2}, **sizes))
    assert told == [{"x": 2}]


# -- CUDA graphs ------------------------------------------------------------------------------------


def test_captured_calls_answer_as_others(bundle):
    """Their buffers on the CPU, which captures nothing: what a call leaves in them never reaches another."""
    plain = posexport.load(bundle)
    session = CapturedSession(make_session(bundle / "model.onnx"), "cpu")
    names = [spec.name for spec in plain.outputs]
    rng = np.random.default_rng(0)
    kept = []
    for length in (3, 5, 3, *range(1, 11), 3):
        ids, ones = rng.integers(0, VOCAB, (2, length)), np.ones((2, length), np.int64)
        feeds = {"input_ids": ids, "attention_mask": ones, "token_type_ids": rng.integers(0, 2, (2, length))}
        before = {name: array.copy() for name, array in feeds.items()}
        wanted = plain.run(feeds)
        kept.append((session.run_arrays(names, feeds), [wanted[name] for name in names]))
        feeds["input_ids"][:] = 0  # the caller's arrays are the caller's
        del before
    for got, wanted in kept:
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(session._held) == 10 < MOST


def test_onnxruntime_s_own_ways_to_run_are_no_way_around(bundle):
    """They would replay a graph that reads another call's arrays."""
    session = CapturedSession(make_session(bundle / "model.onnx"), "cpu")
    assert not [
        name for name in dir(session) if name.startswith("run") and name not in ("run_arrays", "run_with_iobinding")
    ]


@dry
@pytest.mark.all
def test_bfloat16_is_captured_too(tmp_path):
    settings = {"layers": 1, "hidden": 128, "heads": 2, "vocab": 61}
    posexport.convert("encoder-nope", tmp_path / "b", settings=settings, target="cuda", precision="bf16", verify=False)
    first, again, *_ = asked("captured", tmp_path / "b")
    assert (first["captures"], again["graphs"]) == (1, 1)


@dry
def test_a_call_is_captured_once_for_each_shape_and_replayed(bundle):
    first, again, other, first_again, third = asked("captured", bundle)
    assert (first["captures"], other["captures"]) == (1, 1)
    assert first["kernels"] > 0
    for replayed in (again, first_again):
        assert (replayed["captures"], replayed["graphs"], replayed["kernels"]) == (0, 1, 0)
    # of more shapes than are held
    assert (third["captures"], third["graphs"]) == (0, 0)
    assert third["kernels"] > 0


# -- caches -----------------------------------------------------------------------------------------


@dry
@pytest.mark.parametrize(
    ("cache", "precision"),
    [
        pytest.param("dynamic", "fp16", marks=pytest.mark.all),
        ("static", "bf16"),
        pytest.param("static", "fp16", marks=pytest.mark.all),
    ],
)
def test_a_kv_cache_stays_on_the_device(cache, precision, tmp_path):
    """What a step copies to the host is its logits, and with a static cache one number: whether rows are padded."""
    settings = {"layers": 1, "hidden": 128, "heads": 2, "vocab": 61}
    posexport.convert(
        "decoder-nope", tmp_path / "d", settings=settings, target="cuda", precision=precision, cache=cache, verify=False
    )
    prompt, *steps = asked("generated", tmp_path / "d")
    logits = 61 * 4
    assert len(steps) == 3
    for each in (prompt, *steps):
        assert logits <= each["to_host"] <= logits + 16
        assert each["kernels"] > 0
    with pytest.raises(PosexportError, match="a KV cache, which or whose mask grows in every call"):
        posexport.load(tmp_path / "d", provider="cuda", provider_options={"graph": True})


def test_outputs_are_where_they_are_asked_for_with_inputs_that_have_a_default():
    session = make_session(onnx.parser.parse_model(DEFAULTED).SerializeToString())
    values = {"x": to_value(np.arange(3, dtype=np.float32)), "k": to_value(np.full(1, 5, np.float32))}
    (y,) = run_placed(session, values, ["y"], "cpu")
    np.testing.assert_array_equal(y.numpy(), [0, 5, 10])
    if on_stand_in.libraries.missing() is None:
        assert asked("placed") == {"device": "cuda", "shape": [3]}
