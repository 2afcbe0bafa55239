"""What BERT and its heirs share: sizes, positions by ``position_embedding_type``, heads, names of weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Constant, NameMap, Origin, Plan, in_layers, origin, origins_of
from posexport.encodings.absolute import Absolute
from posexport.encodings.encoding import Encoding
from posexport.encodings.relative_key import RelativeKey
from posexport.encodings.relative_key_query import RelativeKeyQuery
from posexport.encodings.rope.release import release_of
from posexport.errors import PosexportError
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.models.layer import EncoderLayer
from posexport.nn.feed_forward import TokenConvolution, activation
from posexport.nn.heads import FillMask, Head, plain_head
from posexport.nn.position_ids import FairseqPositionIds, SequentialPositionIds

if TYPE_CHECKING:
    from posexport.models.longformer import LongformerModel

POSITION_TYPES = ("absolute", "relative_key", "relative_key_query")
#: the end of a class name in ``architectures`` to its task
ARCHITECTURES = {
    "ForMaskedLM": "fill-mask",
    "ForPreTraining": "fill-mask",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "Model": "features",
}


@dataclass(frozen=True, kw_only=True)
class FillMaskNames:
    """``bias`` lists every name of the decoder's bias; ``activation`` None: the model's activation.

    ``decoder`` None: the table of token embeddings, whatever config.json says.
    """

    dense: str
    norm: str
    decoder: str | None
    bias: tuple[str, ...]
    activation: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClassifierNames:
    """``dense`` may be the pooler; ``activation`` None: the model's activation."""

    dense: str
    out: str
    activation: str | None = "tanh"


@dataclass(frozen=True, kw_only=True)
class Names:
    """Modules of an `Encoder` and of its heads to the checkpoint's.

    Attributes:
        prefix: prefix of the encoder's tensors, as `Family.prefix`.
        once: modules that exist once.
        layer: modules of a layer or group, with ``{i}`` for its number.
        parameters: parameters of a layer with a different leaf name.
    """

    prefix: str
    once: Mapping[str, str]
    layer: NameMap
    fill_mask: FillMaskNames
    classifier: ClassifierNames
    parameters: NameMap = field(default_factory=dict)


def settings(
    config: Config,
    *,
    padding_id: int = 0,
    after_padding: bool = False,
    default_activation: str = "gelu",
    fixed_activation: str | None = None,
    default_eps: float = 1e-12,
    **arrangement: Any,
) -> EncoderConfig:
    """Sizes and arrangement; sizes must be said, the rest has transformers' defaults.

    ``padding_id``: where config.json names none. ``after_padding``: positions are counted by it, so that null is
    refused. ``fixed_activation``: what transformers computes whatever ``hidden_act`` says.
    """
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    if config.values.get("pad_token_id", ...) is not None or after_padding:
        # null only says which row was not trained
        padding_id = config.size("pad_token_id", padding_id, least=0, most=vocab - 1)
    key = config.key("hidden_act")
    stated = config.text(key, default_activation)
    name = fixed_activation or stated
    if name != stated:
        config.remark(
            f"says {key} = {stated!r:.60}, which transformers ignores in {config.text('model_type')}: {name} is "
            "computed"
        )
    with config.named_in_errors():
        activation(name)
    if "types" not in arrangement:
        arrangement["types"] = config.size("type_vocab_size", 2)
    if "eps" not in arrangement:
        arrangement["eps"] = config.number("layer_norm_eps", default_eps)
    return EncoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=config.heads(hidden),
        layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=config.size("intermediate_size"),
        activation=name,
        padding_id=padding_id,
        **arrangement,
    )


def even_heads(config: Config, settings: EncoderConfig) -> int:
    """The size of a head, which a rotation needs to be even."""
    if settings.head_size % 2:
        raise PosexportError(
            f"{config.label} makes heads of size {settings.head_size} (hidden_size / num_attention_heads); a rotation "
            f"needs an even number of channels"
        )
    return settings.head_size


def absolute(config: Config, settings: EncoderConfig, *, after_padding: bool = False) -> Absolute:
    """The table of absolute positions; ``after_padding``: they begin after the padding's id, as in RoBERTa."""
    longest = config.size("max_position_embeddings")
    if after_padding and longest <= settings.padding_id + 1:
        raise PosexportError(
            f"{config.label} says max_position_embeddings = {longest}; positions start at pad_token_id + 1 = "
            f"{settings.padding_id + 1}, so it must be greater"
        )
    with torch.device("meta"):
        return Absolute(max_positions=longest, hidden=settings.embedding.width or settings.hidden)


def by_position_type(config: Config, settings: EncoderConfig, *, after_padding: bool = False) -> Encoding:
    """The encoding that ``position_embedding_type`` names."""
    kind = config.text("position_embedding_type", "absolute")
    if kind == "absolute":
        return absolute(config, settings, after_padding=after_padding)
    if kind not in POSITION_TYPES:
        raise PosexportError(
            f"{config.label} says position_embedding_type = {kind!r:.60}; known: {', '.join(POSITION_TYPES)}"
        )
    encoding = RelativeKey if kind == "relative_key" else RelativeKeyQuery
    with torch.device("meta"):
        return encoding(head_size=settings.head_size, max_positions=config.size("max_position_embeddings"))


def plan(
    config: Config,
    task: str,
    names: Names,
    settings: EncoderConfig,
    encoding: Encoding,
    *,
    after_padding: bool = False,
    shared: Mapping[str, str] | None = None,
    longest: int | None = None,
    constants: Mapping[str, Constant] | None = None,
    decides: tuple[str, ...] = (),
    at_input: Encoding | None = None,
    convolution: TokenConvolution | None = None,
) -> Plan:
    """The model for ``task`` and its origins.

    ``shared``: parts of a layer's encoding that are parts of its attention. ``at_input``, ``convolution``: as in
    `Encoder`. The rest is as in `Plan`.
    """
    with torch.device("meta"):
        position_ids = FairseqPositionIds(settings.padding_id) if after_padding else SequentialPositionIds()
        encoder = Encoder(settings, encoding, position_ids, at_input=at_input, convolution=convolution)
        for layer in encoder.groups:
            assert isinstance(layer, EncoderLayer)
            for of_encoding, of_attention in (shared or {}).items():
                setattr(layer.attention.encoding, of_encoding, getattr(layer.attention, of_attention))
        model = EncoderModel(encoder, head(config, task, names, settings))
    origins, unread = named(config, model, names, "encoder.groups", len(encoder.groups))
    return Plan(model, origins, longest, constants or {}, unread, decides=decides)


def head(config: Config, task: str, names: Names, settings: EncoderConfig) -> Head:
    """The head of the task, on the device in use."""
    hidden, layer = settings.hidden, settings.layer
    if task == "fill-mask":
        name = names.fill_mask.activation or layer.feedforward.activation
        return FillMask(hidden, settings.embedding.width or hidden, settings.vocab, name, layer.norm.eps)
    return plain_head(task, hidden, config.labels(), names.classifier.activation or layer.feedforward.activation)


def named(
    config: Config, model: "EncoderModel | LongformerModel", names: Names, layers: str, count: int
) -> tuple[dict[str, Origin], tuple[str, ...]]:
    """The origins of a model's weights, and tensors that are not read. ``layers``: how its ``count`` layers are called.

    The decoder of a fill-mask head is tied to the embeddings here, where config.json says so.
    """
    prefix, fill_mask = f"{names.prefix}.", names.fill_mask
    modules = {f"encoder.{path}": origin(prefix + stored) for path, stored in names.once.items()}
    modules |= in_layers(count, layers, prefix, names.layer)
    modules |= {f"head.{path}": origin(stored) for path, stored in _head_names(model.head, names).items()}
    parameters = in_layers(count, layers, prefix, names.parameters)
    unread: tuple[str, ...] = ()
    if isinstance(model.head, FillMask):
        tied = config.flag("tie_word_embeddings", True) or fill_mask.decoder is None
        bias, unread = decoder_bias(config, fill_mask.bias, fill_mask.decoder, tied=tied)
        parameters["head.decoder.bias"] = Origin(bias)
        if tied:
            token = model.encoder.embeddings.token
            model.head.decoder.weight = token.weight
            decoder = () if fill_mask.decoder is None else (fill_mask.decoder,)
            stored = Origin((prefix + names.once["embeddings.token"], *decoder))
            parameters["encoder.embeddings.token.weight"] = stored.below("weight")
    return origins_of(model, modules, parameters), unread


def _head_names(head: Head, names: Names) -> dict[str, str]:
    if isinstance(head, FillMask):
        # no decoder weight where the decoder is tied to the token embeddings
        return {"dense": names.fill_mask.dense, "norm": names.fill_mask.norm, "decoder": names.fill_mask.decoder or ""}
    if head.reads_first_token:
        return {"dense": names.classifier.dense, "out": names.classifier.out}
    return {"out": "qa_outputs" if len(head.outputs) == 2 else "classifier"}


def decoder_bias(
    config: Config, names: tuple[str, ...], decoder: str | None, *, tied: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits the ``names`` of a fill-mask head's bias into the tied ones and the unused ones.

    BERT's head and its ``decoder`` name one bias twice. transformers 4 always ties the two; 5.23 does if the
    decoder's weight is tied, and otherwise adds only the decoder's.
    """
    separate = f"{decoder}.bias"
    if tied or separate not in names or (release_of(config.values) or 4) < 5:
        return names, ()
    return (separate,), tuple(name for name in names if name != separate)


def family(model_type: str, build: Callable[[Config, str], Plan], prefix: str, **fields: Any) -> Family:
    """A family of encoders; ``fields``: fields of `Family` that differ from BERT's."""
    defaults: dict[str, Any] = {
        "architectures": ARCHITECTURES,
        "roots": ("embeddings.", "encoder.", "pooler.", "embeddings_project.", "LayerNorm.", "contact_head."),
    }
    return Family(model_type=model_type, build=build, prefix=prefix, **{**defaults, **fields})
