"""A bundle is opened: its files, its graphs and what the manifest says of them are checked."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posexport.bundle.manifest import MODEL, Manifest, model_of
from posexport.bundle.read import check_hashes, locate, read
from posexport.errors import PosexportError
from posexport.runtime.captured import CapturedSession
from posexport.runtime.chain import open_chain, taken
from posexport.runtime.declared import check_declared
from posexport.runtime.memory import DEFAULT_MEMORY, Kept, Memory
from posexport.runtime.providers import bundle_session
from posexport.runtime.session import Session
from posexport.spec import PartSpec
from posexport.targets.precisions import PrecisionName
from posexport.targets.provider_options import CAPTURES
from posexport.targets.providers import DEFAULT_PROVIDER, provider_named

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


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

    ``precision``: of a bundle with several, which one; None: the first. ``threads``: of one operator (0: ONNX Runtime
    decides). ``memory``: ``flat``: a call of more than 4,096 tokens returns what it took; ``fast``: all is kept for the
    next call. ``check``: compare every file with its sha256 first. Numbers below 1.2e-38 are taken as 0
    (`make_session`, ``denormals``). ``provider_options``: by the names of `posexport.targets.provider_options`.

    Raises PosexportError if it is not a bundle, if a file is missing or altered, if the provider does not load or has
    no such option, or if the model is not the one that the manifest describes.
    """
    captures = provider_named(provider).session_options(provider_options).get(CAPTURES) == "1"
    # what a graph was captured with must stay where it is
    kept, path = Kept("fast" if captures else memory, provider), Path(directory)
    manifest = read(path, precision)
    if captures:
        _check_shapes_come_again(manifest)
    if check:
        check_hashes(path, manifest)
    graphs: Sequence[tuple[str, Manifest | PartSpec]] = [(p.file, p) for p in manifest.parts] or [(MODEL, manifest)]
    for file, _ in graphs:
        locate(path, file)

    def make(model: Path | bytes) -> "InferenceSession":
        session = bundle_session(model, provider=provider, threads=threads, provider_options=provider_options)
        if captures:  # a session, as far as a chain of graphs asks
            return cast("InferenceSession", CapturedSession(session, provider_named(provider).device))
        return session

    chain = open_chain(model_of(path, manifest.parts), manifest.parts, make)
    for link, (file, graph) in zip(chain.links, graphs, strict=True):
        found = link.session.get_outputs()
        places = {spec.name: place for place, spec in enumerate(graph.inputs)}
        # those that may be left out come last in a session
        given = sorted(taken(link.session), key=lambda arg: places.get(arg.name, len(places)))
        check_declared(file, graph, given, found)
    return Session(path, manifest, chain, kept)


def _check_shapes_come_again(manifest: Manifest) -> None:
    """PosexportError for a model of which no CUDA graph could be used again."""
    if manifest.parts or any(spec.role == "cache" for spec in manifest.inputs):
        what = "several graphs" if manifest.parts else "a KV cache, which or whose mask grows in every call"
        raise PosexportError(f"this bundle has {what}: its calls are not captured as CUDA graphs; leave graph out")
