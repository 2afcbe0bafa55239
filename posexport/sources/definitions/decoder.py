"""``decoder-<encoding>`` and ``encoder-decoder-<encoding>``: models that predict the next token."""

from dataclasses import dataclass, field

from posexport.encodings.compose import RotationAndTerm
from posexport.encodings.encoding import Encoding, Entry
from posexport.encodings.local_window import LocalWindow
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderConfig, DecoderModel, LanguageModel
from posexport.models.encoder import Encoder, EncoderConfig
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.nn.config import Config
from posexport.sources.definitions.encoder import ENCODER
from posexport.sources.definitions.kind import Kind

TASKS = {
    "text-generation": "logits over the vocabulary of the next token, at every token",
    "features": "the hidden states",
}


@dataclass(frozen=True, kw_only=True)
class DecoderSettings(DecoderConfig):
    """``window``: number of tokens that a token attends to, itself included (None: all earlier tokens)."""

    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and self.window < 1:
            raise PosexportError(f"window must be at least 1 token (or none), got {self.window}")


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSettings(Config):
    """Both halves; a setting that both have is the same in both."""

    encoder: EncoderConfig = field(
        default_factory=lambda: EncoderConfig.of(types=0, norm="pre", embedding_norm=False, final_norm=True)
    )
    decoder: DecoderSettings = field(default_factory=DecoderSettings)

    def __post_init__(self) -> None:
        embedding = self.encoder.embedding
        for name, value in (
            ("types", embedding.types),
            ("layer_groups", self.encoder.layer_groups),
            ("dropped_id", embedding.dropped_id),
        ):
            if value:
                raise PosexportError(f"{name} is for encoders, got {value}; leave it out of an encoder-decoder")


def _decoder(config: DecoderSettings, encoding: Encoding, task: str, labels: int) -> DecoderModel:
    del labels
    decoder = Decoder(config, _windowed(_one_sided(encoding), config.window))
    return DecoderModel(decoder, LanguageModel(config, decoder.token) if task == "text-generation" else None)


def _encoder_decoder(config: EncoderDecoderSettings, encoding: Encoding, task: str, labels: int) -> EncoderDecoderModel:
    del labels
    encoder = Encoder(config.encoder.changed(cross_attention=False), encoding)
    settings = config.decoder.changed(cross_attention=True)
    decoder = Decoder(settings, _windowed(_one_sided(encoding.sized()), settings.window))
    head = LanguageModel(settings, encoder.embeddings.token) if task == "text-generation" else None
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
    hidden = config.hidden if config.project_first else config.embedding.width or config.hidden
    return {"hidden": hidden, "heads": config.heads, "head_size": config.head_size}


def _takes(entry: Entry) -> bool:
    return entry.cls.axes == 1


DECODER = Kind(
    name="decoder",
    what="a decoder of the GPT and Llama families",
    config=DecoderSettings,
    defaults={"vocab": 1000, "hidden": 60, "heads": 5, "feedforward": 224, "layers": 2},
    tasks=TASKS,
    takes=_takes,
    sizes=_sizes,
    make=_decoder,
)
ENCODER_DECODER = Kind(
    name="encoder-decoder",
    what="an encoder-decoder of the T5 and BART families",
    config=EncoderDecoderSettings,
    defaults=DECODER.defaults,
    tasks=TASKS,
    takes=ENCODER.takes,
    sizes=lambda config: _sizes(config.decoder),
    make=_encoder_decoder,
)
