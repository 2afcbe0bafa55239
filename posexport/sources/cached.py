"""How a decoder keeps past tokens: ``--cache`` and ``--rotation``."""

import msgspec

from posexport.definition.definition import Definition
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder
from posexport.nn.caching import CACHES, Caching
from posexport.options.recipe import CacheName, RotationName
from posexport.sources.mapped import copy_with_same_weights
from posexport.sources.own_decoder import OwnDecoder
from posexport.sources.plain.decoder import PlainDecoder
from posexport.sources.source import Source
from posexport.sources.transformers.halves import ThroughHalf


def cached(source: Source, cache: CacheName, rotation: RotationName) -> Source:
    """A source with the KV cache that was chosen; its module shares its weights with the old one's.

    Raises:
        PosexportError: the source has no such decoder, or its encoding rotates nothing.
    """
    if (cache, rotation) == ("dynamic", "at-write"):
        return source
    asked = f"--cache {cache}" if cache != "dynamic" else f"--rotation {rotation}"
    module = source.module
    if not isinstance(module, Definition) or not source.limits.kv_cache:
        raise PosexportError(f"{asked} needs a decoder with a cache; {source.name} is for {source.task}: leave it out")
    module = copy_with_same_weights(module)
    decoders = [
        part for part in module.modules() if isinstance(part, Decoder | OwnDecoder | PlainDecoder | ThroughHalf)
    ]
    if rotation == "at-read" and not any(type(e).rotate is not Encoding.rotate for d in decoders for e in d.encodings):
        raise PosexportError(
            f"--rotation at-read has nothing to do: no layer of {source.name} rotates keys; leave it out"
        )
    for decoder in decoders:
        decoder.caching = Caching(CACHES[cache](), rotation)
    # positions that are given end where the inputs do
    limit = source.limits.max_length
    inputs = [msgspec.structs.replace(s, size=limit) if s.role == "positions" else s for s in module.inputs]
    limits = msgspec.structs.replace(source.limits, trace_sizes=module.plan.trace_sizes)
    return msgspec.structs.replace(
        source, module=module, inputs=inputs, outputs=module.outputs, parts=module.parts, limits=limits
    )
