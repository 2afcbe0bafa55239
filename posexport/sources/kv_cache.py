"""How a decoder keeps past tokens: ``--cache`` and ``--rotation``."""

from typing import Any

import msgspec
from torch import nn

from posexport.definition.definition import Definition
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.nn.caching import CACHES, Caching
from posexport.options.recipe import CacheName, RotationName
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.source import Source


def with_kv_cache(source: Source, cache: CacheName, rotation: RotationName) -> Source:
    """A source with the KV cache that was chosen; its module shares its weights with the old one's.

    Raises:
        PosexportError: the source is no decoder with a KV cache, or its encoding rotates nothing.
    """
    if (cache, rotation) == ("dynamic", "at-write"):
        return source
    option = f"--cache {cache}" if cache != "dynamic" else f"--rotation {rotation}"
    module = source.module
    if not isinstance(module, Definition) or not source.limits.kv_cache:
        raise PosexportError(f"{option} needs a decoder with a cache; {source.name} is for {source.task}: leave it out")
    module = copy_with_same_weights(module)
    decoders: list[Any] = [submodule for submodule in module.modules() if _keeps_a_cache(submodule)]
    if rotation == "at-read" and not any(type(e).rotate is not Encoding.rotate for d in decoders for e in d.encodings):
        raise PosexportError(
            f"--rotation at-read has nothing to do: no layer of {source.name} rotates keys; leave it out"
        )
    for decoder in decoders:
        decoder.caching = Caching(CACHES[cache](), rotation)
    # position ids end where the inputs do
    limit = source.limits.max_length
    inputs = [msgspec.structs.replace(s, size=limit) if s.role == "positions" else s for s in module.inputs]
    limits = msgspec.structs.replace(source.limits, trace_sizes=module.plan.trace_sizes)
    return msgspec.structs.replace(
        source, module=module, inputs=inputs, outputs=module.outputs, parts=module.parts, limits=limits
    )


def _keeps_a_cache(submodule: nn.Module) -> bool:
    """Whether ``submodule.caching`` can be set; of a model it is a property that reads its decoder's."""
    return hasattr(submodule, "caching") and not isinstance(getattr(type(submodule), "caching", None), property)
