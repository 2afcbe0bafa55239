"""A bundle is opened: its files, its graphs and what the manifest says of them are checked."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posexport.base.spec import CARRIED, NUM_LOGITS, PAST, InputSpec, Interface, OutputSpec, PartSpec
from posexport.base.targets.dtypes import BY_ORT_TYPE
from posexport.base.targets.precisions import PrecisionName
from posexport.base.targets.provider_options import CAPTURES
from posexport.base.targets.providers import DEFAULT_PROVIDER, provider_named
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import MODEL, Manifest, model_of
from posexport.run.bundle.read import check_hashes, locate, read
from posexport.run.captured import CapturedSession
from posexport.run.chain import all_inputs, open_chain
from posexport.run.providers import bundle_session
from posexport.run.session import Session
from posexport.run.wrapped_session import DEFAULT_MEMORY, Memory, MemoryPolicy

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: the pass that gives all steps the same shapes
_STEPS = "fixed-shape-steps"


def check_declared(file: str, graph: Interface, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise PosexportError unless the session's ``inputs`` and ``outputs`` equal ``graph``, in the same order."""
    _compare(file, "inputs", [_input(spec) for spec in graph.inputs], [_session_value(arg, True) for arg in inputs])
    _compare(
        file, "outputs", [_output(spec) for spec in graph.outputs], [_session_value(arg, False) for arg in outputs]
    )


def _input(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype} {spec.axes}"


def _output(spec: OutputSpec) -> str:
    return f"{spec.name} {spec.axes}"


def _session_value(arg: Any, is_input: bool) -> str:
    known = BY_ORT_TYPE.get(arg.type)
    dtype = f"{known.name if known else arg.type} " if is_input else ""
    return f"{arg.name} {dtype}{list(arg.shape)}"


def _compare(file: str, kind: str, declared: list[str], actual: list[str]) -> None:
    if declared != actual:
        raise PosexportError(
            f"{file} has the {kind} {'; '.join(actual)}, the manifest says {'; '.join(declared)}: convert the bundle "
            "again"
        )


def load(
    directory: str | os.PathLike[str],
    *,
    precision: PrecisionName | None = None,
    provider: str = DEFAULT_PROVIDER,
    threads: int = 0,
    memory: Memory = DEFAULT_MEMORY,
    check: bool = True,
    provider_options: Mapping[str, Any] | None = None,
) -> Session:
    """Open the bundle in ``directory`` on ``provider`` (``posexport list providers``).

    Denormal numbers (below 1.2e-38) are flushed to 0.

    Args:
        directory: a folder that `posexport.convert` wrote.
        precision: one of the bundle's precisions; None: the first.
        provider: the execution provider.
        threads: threads of one operator; 0: the least of cores, affinity, cgroup quota and OMP_NUM_THREADS.
        memory: ``flat``: a call of more than 4,096 tokens releases its memory; ``fast``: it is kept for the next call.
        check: compare every file with its sha256 first.
        provider_options: options by the names of `posexport.base.targets.provider_options`.

    Raises:
        PosexportError: no bundle, a missing or altered file, a provider that does not load, an unknown option, or a
            graph that the manifest does not describe.
    """
    captures = provider_named(provider).session_options(provider_options).get(CAPTURES) == "1"
    # a captured graph reads and writes at fixed addresses
    policy, path = MemoryPolicy("fast" if captures else memory, provider), Path(directory)
    manifest = read(path, precision)
    if captures:
        _check_capturable(manifest)
    _check_rounded(path, manifest, provider, provider_options)
    if check:
        check_hashes(path, manifest)
    graphs: Sequence[tuple[str, Manifest | PartSpec]] = [(p.file, p) for p in manifest.parts] or [(MODEL, manifest)]
    for file, _ in graphs:
        locate(path, file)

    def make(model: Path | bytes) -> "InferenceSession":
        session = bundle_session(model, provider=provider, threads=threads, provider_options=provider_options)
        if captures:  # it has the methods that a chain calls
            return cast("InferenceSession", CapturedSession(session, provider_named(provider).device))
        return session

    chain = open_chain(model_of(path, manifest.parts), manifest.parts, make)
    for link, (file, graph) in zip(chain.links, graphs, strict=True):
        order = {spec.name: position for position, spec in enumerate(graph.inputs)}
        # a session lists optional inputs last
        known = [arg for arg in all_inputs(link.session) if arg.name != NUM_LOGITS]
        inputs = sorted(known, key=lambda arg: order.get(arg.name, len(order)))
        check_declared(file, graph, inputs, link.session.get_outputs())
    return Session(path, manifest, chain, policy)


def _check_rounded(path: Path, manifest: Manifest, provider: str, options: Mapping[str, Any] | None) -> None:
    """Raise PosexportError if a session in a precision below the graph's would round positions."""
    record = provider_named(provider)
    precision = record.precision(options)
    if precision is None:
        return
    if manifest.target != provider:
        raise PosexportError(
            f"precision={precision} of {record.label} rounds positions in {path}, which has target {manifest.target}: "
            f"convert it again with --target {provider}, or leave the option out"
        )
    kept = manifest.passes.get("float32-positions")
    if kept is not None and kept.rejected:
        raise PosexportError(
            f"precision={precision} of {record.label} rounds positions in {path}: {kept.rejected[0]}; leave it out"
        )


def _check_capturable(manifest: Manifest) -> None:
    """Refuse CUDA graphs for a model in which no shape occurs twice.

    Raises:
        PosexportError: a model of several graphs, or with a KV cache and steps of different shapes.
    """
    if manifest.parts:
        raise PosexportError(
            "this bundle has several graphs: its calls are not captured as CUDA graphs; leave graph out"
        )
    if any(spec.role in CARRIED for spec in manifest.inputs) and not _has_fixed_shape_steps(manifest):
        result = manifest.passes.get(_STEPS)
        advice = ", or convert it with --target cuda --cache static --lowering filled-slots"
        raise PosexportError(
            "this bundle has a KV cache, which or whose mask grows in every call: its calls are not captured as CUDA "
            f"graphs; leave graph out{advice if result is None else f' ({result.rejected[0]})'}"
        )


def _has_fixed_shape_steps(manifest: Manifest) -> bool:
    """Whether a mask may be as wide as the static KV cache, and nothing else grows."""
    result = manifest.passes.get(_STEPS)
    grows = any(spec.role == "state" or PAST in spec.axes for spec in manifest.inputs)
    return result is not None and result.nodes > 0 and not grows
