"""``decoder-<encoding>`` and ``encoder-decoder-<encoding>``: models that predict the next token."""

from dataclasses import replace

from posexport.encodings.compose import RotationAndTerm
from posexport.encodings.encoding import Encoding, Entry
from posexport.encodings.local_window import LocalWindow
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderConfig, LanguageModel
from posexport.models.decoder_task import DecoderModel
from posexport.models.encoder import Encoder, EncoderConfig
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.sources.definitions.encoder import ENCODER
from posexport.sources.definitions.kind import Kind

TASKS = {
    "text-generation": "logits over the vocabulary of the next token, at every token",
    "features": "the hidden states",
}


def _decoder(config: DecoderConfig, encoding: Encoding, task: str, labels: int) -> DecoderModel:
    del labels
    decoder = Decoder(config, _windowed(_one_sided(encoding), config.window))
    return DecoderModel(decoder, LanguageModel(config, decoder.token) if task == "text-generation" else None)


def _encoder_decoder(config: DecoderConfig, encoding: Encoding, task: str, labels: int) -> EncoderDecoderModel:
    del labels
    fields = {name: getattr(config, name) for name in EncoderConfig.__dataclass_fields__}
    encoder = Encoder(EncoderConfig(**{**fields, "cross_attention": False}), encoding)
    decoder = Decoder(replace(config, cross_attention=True), _windowed(_one_sided(encoding.sized()), config.window))
    head = LanguageModel(config, encoder.embeddings.token) if task == "text-generation" else None
    return EncoderDecoderModel(encoder, decoder, head)


def _one_sided(encoding: Encoding) -> Encoding:
    """The encoding without a part for keys after the query, where it has one to leave out."""
    return encoding.sized(bidirectional=False)


def _windowed(encoding: Encoding, window: int | None) -> Encoding:
    """The encoding in layers that see ``window`` tokens, the token itself among them."""
    if window is None:
        return encoding
    if set(encoding.hooks) - {"rotate"} or encoding.per_layer:
        raise PosexportError(
            f"window={window} is for encodings that rotate queries and keys, or do nothing; {encoding.name} does more: "
            "leave it out"
        )
    return RotationAndTerm(encoding, LocalWindow(left=window - 1, right=0))


def _sizes(config: DecoderConfig) -> dict[str, int]:
    hidden = config.hidden if config.project_first else config.embedding or config.hidden
    return {"hidden": hidden, "heads": config.heads, "head_size": config.head_size}


def _takes(entry: Entry) -> bool:
    return entry.cls.axes == 1


DECODER = Kind(
    name="decoder",
    what="a decoder of the GPT and Llama families",
    config=DecoderConfig,
    defaults={"vocab": 1000, "hidden": 60, "heads": 5, "feedforward": 224, "layers": 2},
    tasks=TASKS,
    takes=_takes,
    sizes=_sizes,
    make=_decoder,
)
ENCODER_DECODER = Kind(
    name="encoder-decoder",
    what="an encoder-decoder of the T5 and BART families",
    config=DecoderConfig,
    defaults=DECODER.defaults,
    tasks=TASKS,
    takes=ENCODER.takes,
    sizes=_sizes,
    make=_encoder_decoder,
)
