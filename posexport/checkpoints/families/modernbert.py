"""ModernBERT: rotations, local windows in most layers, gated feed-forwards, normalisation before each sublayer.

Every ``global_attn_every_n_layers``-th layer sees all tokens, the others those up to ``local_attention / 2`` away, each
kind with a separate RoPE base. Where the window of a padded query holds padding only, transformers spreads its
attention over all tokens, posexport over the unpadded ones beyond the window: outputs of padded tokens differ, which no
other token sees. Any length is accepted: ``max_position_embeddings`` is the trained length, no table ends there.
"""

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import ZEROS, NameMap, Origin, Plan, SplitFused, in_layers, origin, origins_of
from posexport.encodings.compose import ByLayer, RotationAndTerm
from posexport.encodings.encoding import Encoding
from posexport.encodings.local_window import LocalWindow
from posexport.encodings.rope.config import from_config
from posexport.encodings.rope.rope import rotation
from posexport.errors import PosexportError
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.models.modernbert import PooledClassification, PredictedTokens, Prediction
from posexport.nn.heads import Features, Head, QuestionAnswering, TokenClassification

_KINDS = ("full_attention", "sliding_attention")
#: modules of the encoder and of a layer to the checkpoint's
_ONCE = {
    "encoder.embeddings.token": "model.embeddings.tok_embeddings",
    "encoder.embeddings.norm": "model.embeddings.norm",
    "encoder.final_norm": "model.final_norm",
}
_LAYER: NameMap = {
    "attention.output": "attn.Wo",
    "attention_residual.norm": "attn_norm",
    "feedforward.inner": Origin(("mlp.Wi",), (SplitFused(0, parts=2),)),
    "feedforward.gate": Origin(("mlp.Wi",), (SplitFused(1, parts=2),)),
    "feedforward.outer": "mlp.Wo",
    "feedforward_residual.norm": "mlp_norm",
    **decoder.fused_qkv("attn.Wqkv"),
}


def _build(config: Config, task: str) -> Plan:
    settings = _settings(config)
    with torch.device("meta"):
        encoder = Encoder(settings, _encoding(config, settings))
        model = EncoderModel(encoder, _head(config, settings, task))
    modules = {name: origin(stored) for name, stored in _ONCE.items()}
    modules |= in_layers(settings.layers, "encoder.groups", "model.layers.{i}.", _LAYER)
    modules |= {f"head.prediction.{path}": origin(f"head.{path}") for path in ("dense", "norm")}
    out = origin("decoder" if task == "fill-mask" else "classifier")
    modules |= {"head.head.out": out, "head.out": out}
    parameters: dict[str, Origin] = {}
    if task == "fill-mask":
        if config.flag("tie_word_embeddings", True):
            model.get_submodule("head.head.out").weight = encoder.embeddings.token.weight
            token = Origin((_ONCE["encoder.embeddings.token"], "decoder"))
            parameters["encoder.embeddings.token.weight"] = token.below("weight")
        if not config.flag("decoder_bias", True):
            parameters["head.head.out.bias"] = ZEROS
    return Plan(model, origins_of(model, modules, parameters))


def _settings(config: Config) -> EncoderConfig:
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % (2 * heads):
        raise PosexportError(
            f"{config.label} says hidden_size = {hidden}, num_attention_heads = {heads}; the heads must divide the "
            f"size, into an even number of channels each, as rotations turn pairs of them"
        )
    vocab = config.size("vocab_size")
    unsaid = config.values.get("pad_token_id", ...) is None
    return EncoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=heads,
        layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=config.size("intermediate_size"),
        types=0,
        activation=config.activation("hidden_activation", "gelu"),
        gated=True,
        attention_bias=config.flag("attention_bias", False),
        feedforward_bias=config.flag("mlp_bias", False),
        norm="pre",
        norm_bias=config.flag("norm_bias", False),
        first_norm=False,
        final_norm=True,
        eps=config.number("norm_eps", 1e-5),
        padding_id=0 if unsaid else config.size("pad_token_id", 50283, least=0, most=vocab - 1),
    )


def _encoding(config: Config, settings: EncoderConfig) -> Encoding:
    """One for every layer, as ``layer_types`` says (transformers 5) or ``global_attn_every_n_layers``."""
    every = config.size("global_attn_every_n_layers", 3)
    kinds = config.values.get("layer_types")
    if kinds is None:
        kinds = [_KINDS[i % every != 0] for i in range(settings.layers)]
    if not isinstance(kinds, list) or len(kinds) != settings.layers or not all(kind in _KINDS for kind in kinds):
        raise PosexportError(
            f"{config.label} says layer_types = {kinds!r:.60}; it must be a list of num_hidden_layers = "
            f"{settings.layers} out of {', '.join(_KINDS)}"
        )
    far_base = config.values.get("global_rope_theta", 160000.0)
    near_base = config.values.get("local_rope_theta", 10000.0)
    rotations = {}
    for kind, base in zip(_KINDS, (far_base, far_base if near_base is None else near_base), strict=True):
        with config.named_in_errors():
            schedule = from_config(config.under({"rope_theta": base}), head_size=settings.head_size, layer_type=kind)
        rotations[kind] = rotation(schedule, head_size=settings.head_size)
    side = config.size("local_attention", 128) // 2
    near = RotationAndTerm(rotations["sliding_attention"], LocalWindow(left=side, right=side))
    return ByLayer(rotations[kind] if kind == "full_attention" else near for kind in kinds)


def _head(config: Config, settings: EncoderConfig, task: str) -> Head:
    hidden = settings.hidden
    if task == "features":
        return Features(hidden)
    name = config.activation("classifier_activation", "gelu")
    prediction = Prediction(settings.layer.norm, hidden, name, bias=config.flag("classifier_bias", False))
    if task == "fill-mask":
        return PredictedTokens(prediction, TokenClassification(hidden, settings.vocab))
    if task == "token-classification":
        return PredictedTokens(prediction, TokenClassification(hidden, config.labels()))
    if task == "question-answering":
        return PredictedTokens(prediction, QuestionAnswering(hidden))
    kind = config.text("classifier_pooling", "cls")
    if kind not in ("cls", "mean"):
        raise PosexportError(f"{config.label} says classifier_pooling = {kind!r:.60}; it must be cls or mean")
    return PooledClassification(prediction, hidden, config.labels(), "mean" if kind == "mean" else "cls")


MODERNBERT = Family(
    model_type="modernbert",
    build=_build,
    prefix="model",
    roots=("embeddings.", "layers.", "final_norm."),
    architectures={
        "ForMaskedLM": "fill-mask",
        "ForSequenceClassification": "sequence-classification",
        "ForTokenClassification": "token-classification",
        "ForQuestionAnswering": "question-answering",
        "Model": "features",
    },
    other_heads={
        "head.": "a head's first linear projection",
        "decoder.": "the fill-mask head",
        "classifier.": "a classification head",
    },
)
