"""The kinds of built-in models. One line a kind."""

from posexport.sources.definitions.audio import AUDIO
from posexport.sources.definitions.decoder import DECODER, ENCODER_DECODER
from posexport.sources.definitions.encoder import ENCODER
from posexport.sources.definitions.kind import Kind
from posexport.sources.definitions.vision import VISION
from posexport.sources.definitions.windowed import SWIN, SWINV2

#: several may share a name: they take different encodings
KINDS: tuple[Kind, ...] = (ENCODER, DECODER, ENCODER_DECODER, VISION, SWIN, SWINV2, AUDIO)
