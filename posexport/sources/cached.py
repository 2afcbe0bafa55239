"""How a decoder keeps past tokens: ``--cache`` and ``--rotation``, applied to a loaded source."""

from dataclasses import replace

import msgspec

from posexport.definition.definition import Definition
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder
from posexport.nn.caching import CACHES, Caching, Rotate
from posexport.recipe import CacheName
from posexport.sources.own_decoder import OwnDecoder
from posexport.sources.source import Source


def cached(source: Source, cache: CacheName, rotate: Rotate) -> Source:
    """The source with its decoder's cache as asked; the module is changed in place.

    Raises:
        PosexportError: the source has no such decoder, or its encoding rotates nothing.
    """
    if (cache, rotate) == ("dynamic", "at-write"):
        return source
    asked = f"--cache {cache}" if cache != "dynamic" else f"--rotation {rotate}"
    module = source.module
    if not isinstance(module, Definition) or not source.envelope.cached:
        raise PosexportError(f"{asked} needs a decoder with a cache; {source.name} is for {source.task}: leave it out")
    decoders = [part for part in module.modules() if isinstance(part, Decoder | OwnDecoder)]
    if rotate == "at-read" and not any(type(e).rotate is not Encoding.rotate for d in decoders for e in d.encodings):
        raise PosexportError(
            f"--rotation at-read has nothing to do: no layer of {source.name} rotates keys; leave it out"
        )
    for decoder in decoders:
        decoder.caching = Caching(CACHES[cache](), rotate)
    envelope = msgspec.structs.replace(source.envelope, traced=module.envelope.traced)
    # positions that are given end where the inputs do
    inputs = [msgspec.structs.replace(s, size=envelope.limit) if s.role == "positions" else s for s in module.inputs]
    return replace(source, inputs=inputs, outputs=module.outputs, parts=module.parts, envelope=envelope)
