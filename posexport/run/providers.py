"""ONNX Runtime sessions on exactly the requested provider.

By default, ONNX Runtime falls back from CUDA to the CPU with a warning on stderr. Here the session is on the provider,
or an error names the missing library. Nodes without a kernel of the provider still run on the CPU:
`posexport.run.placement` lists them.
"""

import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posexport.base.spec import NUM_LOGITS
from posexport.base.system.extras import require, runtime_conflict
from posexport.base.system.machine import saturates
from posexport.base.system.threads import session_threads
from posexport.base.targets.provider_options import CAPTURES
from posexport.base.targets.providers import DEFAULT_PROVIDER, Provider, devices, is_plugin, provider_named
from posexport.errors import PosexportError
from posexport.run import wrapped_session as thread_state

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue, SessionOptions

#: ONNX Runtime's names for how far it optimises a graph, in their order
LEVELS = ("disable", "basic", "extended", "layout", "all")

#: a remark below this level is not printed: ONNX Runtime raises every error that it also logs
_FATAL = 4


def check_uncaptured(provider: str, options: Mapping[str, Any] | None) -> None:
    """Raise PosexportError for options that the provider does not have, and for ``graph``.

    A captured graph reads and writes the buffers of its first call, which only a loaded bundle holds.
    """
    if provider_named(provider).session_options(options).get(CAPTURES) == "1":
        raise PosexportError("graph=on is for posexport.load and run, which hold the buffers of a graph; leave it out")


def make_session(
    model: Path | bytes,
    *,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    level: str = "all",
    profile: Path | None = None,
    spinning: bool = True,
    denormals: bool = True,
    prepacking: bool = True,
    weights: Path | None = None,
    initializers: Mapping[str, "OrtValue"] | None = None,
    provider_options: Mapping[str, Any] | None = None,
    as_ready: bool = False,
) -> "InferenceSession":
    """An InferenceSession for ``model`` on ``provider``, float32 computed as float32.

    ``threads``: of one operator (0: `posexport.base.system.threads`). ``level``: one of `LEVELS`. ``profile``: path
    prefix of a profile to write. ``spinning``: idle threads wait busily, which is faster alone and slower under other
    load. ``denormals``: keep numbers below 1.2e-38; if false, they are 0 in the session's threads, and in the calling
    thread while it runs (`posexport.run.wrapped_session`). ``prepacking``: kernels copy constant weights into the order
    in which they read them, which takes as long as several calls. ``weights``: the folder of external data for a model
    in bytes; a path has them in its folder. ``initializers``: by name, in place of the model's; they must outlive the
    session. ``provider_options``: as `posexport.load` takes them. ``as_ready``: nodes run once their inputs are there.
    By default all that the first output needs runs first, and what only other outputs read is kept until then.

    Raises PosexportError for an unknown provider, option or level, for a provider that does not load (naming the
    library), for a model that is no ONNX file or is newer than the installed ONNX Runtime.
    """
    require("running a model", "onnxruntime")
    import onnxruntime

    record = provider_named(provider)
    if threads < 0:
        raise PosexportError(f"threads must be 0 (as many as are allowed here) or more, got {threads}")
    threads = session_threads(threads)
    ort_options = {**record.session_options(provider_options), **record.pool(threads)}
    if isinstance(model, Path) and not model.is_file():
        raise PosexportError(f"{model} does not exist or is not a file; give an ONNX model")
    options = _session_options(threads, level, profile, spinning, prepacking, initializers or {}, as_ready)
    for name, value in numeric_options(model, provider=provider, denormals=denormals).items():
        options.add_session_config_entry(name, value)
    if not record.takes_defaults:
        model, weights = _with_required_inputs(model, weights)
    if weights is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights))
    by_name = _provider_arguments(record, ort_options, options)
    record.prepare()
    if _quiet:
        _silence(record)
    try:
        with thread_state.unchanged():  # the process's first session sets the calling thread's, for good
            session = onnxruntime.InferenceSession(
                model if isinstance(model, bytes) else str(model), options, **by_name
            )
    except Exception as err:
        raise _explained(err, model, record) from err
    if record.ort_name not in session.get_providers():
        reason = record.load_failure("") or "ONNX Runtime gives no reason"
        raise PosexportError(f"{record.ort_name} was asked for and did not load: {reason}")
    if any(value.name == NUM_LOGITS for value in session.get_inputs()):
        return cast("InferenceSession", thread_state.NumLogitsSession(session))
    return session


def bundle_session(
    model: Path | bytes,
    *,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    level: str = "all",
    profile: Path | None = None,
    spinning: bool = True,
    prepacking: bool = True,
    weights: Path | None = None,
    provider_options: Mapping[str, Any] | None = None,
    as_ready: bool = False,
) -> "InferenceSession":
    """`make_session` with the options of bundles, shared by inference and proof; these differ:

    A proof has no ``spinning``, and no ``prepacking`` for a few calls of a large model. A copy that has outputs of all
    nodes runs them ``as_ready``.
    """
    return make_session(
        model,
        provider=provider,
        threads=threads,
        level=level,
        profile=profile,
        spinning=spinning,
        denormals=False,
        prepacking=prepacking,
        weights=weights,
        provider_options=provider_options,
        as_ready=as_ready,
    )


def numeric_options(
    model: Path | bytes, *, provider: str = DEFAULT_PROVIDER, denormals: bool = False
) -> dict[str, str]:
    """The session options that change the outputs of ``model``, by ONNX Runtime's names, as `make_session` sets them.

    With the default of ``denormals`` these are the options of bundles, which manifests record.
    """
    options = {}
    held = _bytes_of(model)
    multiplies_integers = held.find(b"MatMulInteger") >= 0 or held.find(b"block_size") < 0
    if saturates() and multiplies_integers:
        # int8 weights become uint8, which is slower and right. Not for all models: with it ONNX Runtime 1.31 opens no
        # model that reads an int8 weight twice, and runs no model with blocked int8 weights
        options["session.x64quantprecision"] = "1"
    if held.find(b"DequantizeLinear") >= 0 and held.find(b"block_size") >= 0:
        # ONNX Runtime makes MatMulNBits of it with its default level, which may change between versions: set explicitly
        options["session.qdq_matmulnbits_accuracy_level"] = str(provider_named(provider).accuracy_level)
    if not denormals and thread_state.supported():
        options["session.set_denormal_as_zero"] = "1"
    return options


def _provider_arguments(record: Provider, ort_options: dict[str, str], options: "SessionOptions") -> dict[str, Any]:
    """Arguments of InferenceSession that select the provider; a plug-in's devices are set in ``options`` instead."""
    import onnxruntime

    if is_plugin(record):
        options.add_provider_for_devices(devices(record), ort_options)
        return {}
    if record.ort_name in onnxruntime.get_available_providers():
        return {"providers": [(record.ort_name, ort_options)], "enable_fallback": 0}
    raise PosexportError(
        f"{record.ort_name} was asked for, but the installed onnxruntime {onnxruntime.__version__} is built without "
        f"it; {runtime_conflict() or record.install}"
    )


def _with_required_inputs(model: Path | bytes, weights: Path | None) -> tuple[Path | bytes, Path | None]:
    """``model`` with its optional inputs made required, and the folder of its weights.

    An initializer with the name of an input is the input's default. A provider that compiles the whole graph folds the
    default as a constant and ignores the feed.
    """
    import onnx

    proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model, load_external_data=False)
    inputs = {value.name for value in proto.graph.input}
    constants = [tensor for tensor in proto.graph.initializer if tensor.name not in inputs]
    if len(constants) == len(proto.graph.initializer):
        return model, weights
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(constants)
    return proto.SerializeToString(), model.parent if isinstance(model, Path) else weights


def check_loads(provider: str) -> None:
    """Raise the PosexportError of `make_session` if sessions on ``provider`` cannot be created."""
    import onnx.parser

    tiny = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[1] y) {y = Neg(x)}'
    )
    make_session(tiny.SerializeToString(), provider=provider)


def _session_options(
    threads: int,
    level: str,
    profile: Path | None,
    spinning: bool,
    prepacking: bool,
    initializers: Mapping[str, "OrtValue"],
    as_ready: bool,
) -> "SessionOptions":
    import onnxruntime

    if level not in LEVELS:
        raise PosexportError(f"unknown optimisation level {level!r}; known: {', '.join(LEVELS)}")
    name = f"ORT_{'DISABLE_ALL' if level == 'disable' else 'ENABLE_' + level.upper()}"
    known = onnxruntime.GraphOptimizationLevel.__members__
    if name not in known:
        raise PosexportError(
            f"the installed onnxruntime {onnxruntime.__version__} has no optimisation level {level}: upgrade it"
        )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = known[name]
    options.intra_op_num_threads = threads
    options.log_severity_level = _FATAL
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not prepacking:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if as_ready:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    for initializer, value in initializers.items():
        options.add_initializer(initializer, value)
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    return options


def _bytes_of(model: Path | bytes) -> bytes | mmap.mmap:
    """The serialized model, to search for names of operators and attributes without onnx.

    onnx is not required for inference.
    """
    if isinstance(model, bytes) or not model.stat().st_size:
        return b"" if isinstance(model, Path) else model
    with model.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


#: whether ONNX Runtime is silenced for the whole process, by the command line
_quiet = False


def quiet() -> None:
    """Disable telemetry and the error log of ONNX Runtime for this process; the command line calls it.

    ONNX Runtime logs several lines on stderr for an error that a PosexportError states in one sentence.
    """
    global _quiet
    _quiet = True


def _silence(provider: Provider) -> None:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    if not provider.built_in:
        onnxruntime.set_default_logger_severity(_FATAL)


def _explained(err: Exception, model: Path | bytes, provider: Provider) -> PosexportError:
    """The error of opening ``model`` as one sentence; an unknown error keeps the text of ONNX Runtime."""
    import onnxruntime

    text = str(err)
    thing = "the model" if isinstance(model, bytes) else str(model)
    upgrade = f"the installed onnxruntime {onnxruntime.__version__}"
    if match := re.search(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text):
        return PosexportError(
            f"{thing} has IR version {match[1]}, {upgrade} reads up to {match[2]}: upgrade onnxruntime"
        )
    if match := re.search(r"Opset (\d+) is under development.*support for domain (\S+) is till opset (\d+)", text):
        return PosexportError(
            f"{thing} has opset {match[1]} of {match[2]}, {upgrade} runs up to {match[3]}: upgrade onnxruntime or "
            f"convert again with --opset {match[3]}"
        )
    if "INVALID_PROTOBUF" in text or "No graph was found in the protobuf" in text:
        return PosexportError(f"{thing} is not an ONNX model, or was cut: convert it again")
    if reason := provider.load_failure(text):
        return PosexportError(f"{provider.ort_name} was asked for and did not load: {reason}")
    return PosexportError(f"ONNX Runtime {onnxruntime.__version__} does not open {thing}: {text}")
