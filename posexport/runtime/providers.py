"""ONNX Runtime sessions on exactly the provider that was asked for.

Left alone, ONNX Runtime answers a request for CUDA with a session on the CPU and a remark on stderr. Here the session
is on the provider or there is an error that names what is missing. Nodes that the provider has no kernel for still go
to the CPU: `posexport.runtime.placement` finds those.
"""

import contextlib
import ctypes
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from posexport.errors import PosexportError
from posexport.extras import require, runtime_conflict
from posexport.runtime import denormals as thread_state

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

#: what users call a provider, and what ONNX Runtime calls it
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: TF32 keeps 10 bits of a factor's 23: PyTorch leaves it off for matrix products too, so both are held to float32
_OPTIONS: dict[str, dict[str, str]] = {"cpu": {}, "cuda": {"use_tf32": "0"}}

#: ONNX Runtime's names for how far it optimises a graph, in their order
LEVELS = ("disable", "basic", "extended", "layout", "all")

#: a remark below this level is not printed: ONNX Runtime raises every error that it also logs
_FATAL = 4


def execution_provider(provider: str) -> str:
    """ONNX Runtime's name for ``provider``; PosexportError lists the known ones."""
    if provider not in PROVIDERS:
        raise PosexportError(f"unknown provider {provider!r}; known: {', '.join(PROVIDERS)}")
    return PROVIDERS[provider]


def make_session(
    model: Path | bytes,
    *,
    provider: str = "cpu",
    threads: int = 0,
    level: str = "all",
    profile: Path | None = None,
    spinning: bool = True,
    denormals: bool = True,
    weights: Path | None = None,
) -> "InferenceSession":
    """A session for ``model`` (a path where weights lie beside it) on ``provider``, float32 computed as float32.

    ``threads``: of one operator (0: ONNX Runtime decides). ``level``: one of `LEVELS`. ``profile``: write a profile
    whose name begins so.
    ``spinning``: idle threads wait busily, which is faster alone and slower beside other work. ``denormals``: numbers
    below 1.2e-38 are kept; where not, they are 0 in the session's threads (`posexport.runtime.denormals`: and in the
    calling one while it runs). ``weights``: the folder of the files with the weights that a model given as bytes does
    not hold.

    Raises PosexportError for an unknown provider or level, for a provider that does not load (naming the library), for
    a model that is no ONNX file or is newer than the installed ONNX Runtime.
    """
    require("running a model", "onnxruntime")
    import onnxruntime

    wanted = execution_provider(provider)
    options = _session_options(threads, level, profile, spinning)
    if not denormals and thread_state.supported():
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
    if wanted not in onnxruntime.get_available_providers():
        raise PosexportError(
            f"{wanted} was asked for, but the installed onnxruntime {onnxruntime.__version__} is built without it; "
            + (runtime_conflict() or "install onnxruntime-gpu in its place")
        )
    if isinstance(model, Path) and not model.is_file():
        raise PosexportError(f"{model} does not exist or is not a file; give an ONNX model")
    if provider == "cuda":
        _preload()
    if _quiet:
        _silence(provider)
    try:
        with thread_state.unchanged():  # the process's first session sets the calling thread's, for good
            session = onnxruntime.InferenceSession(
                model if isinstance(model, bytes) else str(model),
                options,
                providers=[(wanted, _OPTIONS[provider])],
                enable_fallback=0,
            )
    except Exception as err:
        raise _explained(err, model, provider) from err
    if wanted not in session.get_providers():
        raise PosexportError(
            f"{wanted} was asked for and did not load: {missing_library() or 'ONNX Runtime gives no reason'}"
        )
    return session


def bundle_session(
    model: Path | bytes,
    *,
    provider: str = "cpu",
    threads: int = 0,
    level: str = "all",
    profile: Path | None = None,
    spinning: bool = True,
    weights: Path | None = None,
) -> "InferenceSession":
    """`make_session` as bundles are opened, in use and in their proof alike; only ``spinning`` differs between them."""
    return make_session(
        model,
        provider=provider,
        threads=threads,
        level=level,
        profile=profile,
        spinning=spinning,
        denormals=False,
        weights=weights,
    )


def check_loads(provider: str) -> None:
    """Raise PosexportError, as `make_session` does, if a session on ``provider`` is not to be had."""
    import onnx.parser

    tiny = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[1] y) {y = Neg(x)}'
    )
    make_session(tiny.SerializeToString(), provider=provider)


def _session_options(threads: int, level: str, profile: Path | None, spinning: bool) -> "SessionOptions":
    import onnxruntime

    if level not in LEVELS:
        raise PosexportError(f"unknown optimisation level {level!r}; known: {', '.join(LEVELS)}")
    name = f"ORT_{'DISABLE_ALL' if level == 'disable' else 'ENABLE_' + level.upper()}"
    known = onnxruntime.GraphOptimizationLevel.__members__
    if name not in known:
        raise PosexportError(
            f"the installed onnxruntime {onnxruntime.__version__} has no optimisation level {level}: upgrade it"
        )
    if threads < 0:
        raise PosexportError(f"threads must be 0 (ONNX Runtime decides) or more, got {threads}")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = known[name]
    options.intra_op_num_threads = threads
    options.log_severity_level = _FATAL
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    return options


def _preload() -> None:
    """Load CUDA's libraries from the nvidia wheels, if they are installed, or from where the system keeps them."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints; `missing_library` says the same in one sentence
            onnxruntime.preload_dlls()


#: whether ONNX Runtime may be silenced for the whole process: the command line's to say
_quiet = False


def quiet() -> None:
    """For a process that is posexport's own: nothing about models leaves the machine, and ONNX Runtime does not tell on
    stderr, over several lines, what a PosexportError says in one.
    """
    global _quiet
    _quiet = True


def _silence(provider: str) -> None:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    if provider != "cpu":
        onnxruntime.set_default_logger_severity(_FATAL)


def missing_library() -> str | None:
    """Why the CUDA provider does not load, with the name of the library; None if no reason is found.

    To be asked after ONNX Runtime has tried in vain: loaded before, its provider library takes a wrong turn.
    """
    import onnxruntime

    suffix = ".dll" if sys.platform == "win32" else ".so"
    prefix = "" if sys.platform == "win32" else "lib"
    capi = Path(onnxruntime.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(capi / f"{prefix}onnxruntime_providers_cuda{suffix}"))
    except OSError as err:
        found = re.match(r"(\S+): cannot open shared object file", str(err))
        library = f"the library {found[1]} is missing" if found else str(err)
        return f"{library}; install the CUDA and cuDNN that onnxruntime {onnxruntime.__version__} asks for"
    return _no_device()


def _no_device() -> str | None:
    """What CUDA's driver says about devices, asked directly."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"the NVIDIA driver's library {name} is missing; install the driver"
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code or count.value == 0:
        return f"the NVIDIA driver finds no usable CUDA device (cuInit: {code}, devices: {count.value})"
    return None


def _explained(err: Exception, model: Path | bytes, provider: str) -> PosexportError:
    """What ONNX Runtime raised when it opened ``model``, as a sentence; its own words where they are not known here."""
    import onnxruntime

    text = str(err)
    thing = "the model" if isinstance(model, bytes) else str(model)
    upgrade = f"the installed onnxruntime {onnxruntime.__version__}"
    if found := re.search(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text):
        return PosexportError(
            f"{thing} has IR version {found[1]}, {upgrade} reads up to {found[2]}: upgrade onnxruntime"
        )
    if found := re.search(r"Opset (\d+) is under development.*support for domain (\S+) is till opset (\d+)", text):
        return PosexportError(
            f"{thing} has opset {found[1]} of {found[2]}, {upgrade} runs up to {found[3]}: upgrade onnxruntime or "
            f"convert again with --opset {found[3]}"
        )
    if "INVALID_PROTOBUF" in text or "No graph was found in the protobuf" in text:
        return PosexportError(f"{thing} is not an ONNX model, or was cut: convert it again")
    if provider == "cuda" and (reason := missing_library() or _device_failure(text)):
        return PosexportError(f"{PROVIDERS[provider]} was asked for and did not load: {reason}")
    return PosexportError(f"ONNX Runtime {onnxruntime.__version__} does not open {thing}: {text}")


def _device_failure(text: str) -> str | None:
    found = re.search(r"CUDA failure (\d+): ([^;]+)", text)
    return f"CUDA failure {found[1]}, {found[2].strip()}" if found else None
