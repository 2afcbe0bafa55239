"""Parts of an encoder-decoder whose decoder takes the encoder's states, as optimum and transformers.js call them."""

from posexport.errors import PosexportError
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.encoder_decoder_parts import Wiring
from posexport.sources.source import Source


def wiring(source: Source) -> Wiring:
    """The parts that a source can be cut into; PosexportError where it is no encoder-decoder of posexport's."""
    if not isinstance(source.module, EncoderDecoderModel):
        raise PosexportError(f"{source.name} is exported in parts that are not known to any layout; leave it out")
    return source.module.wiring
