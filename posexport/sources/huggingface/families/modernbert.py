"""ModernBERT: rotations, local windows in most layers, gated feed-forwards, normalisation before each sublayer.

Every ``global_attn_every_n_layers``-th layer sees all tokens, the others those up to ``local_attention / 2`` away, each
kind with its own base of rotation. Where the window of a padded query holds padding only, transformers spreads its
attention over all tokens and we do over the real ones beyond the window: rows of padding differ, which no real token
sees. Any length is taken: ``max_position_embeddings`` says what it was trained for, no table ends there.
"""

import torch

from posexport.encodings.compose import ByLayer, RotationAndTerm
from posexport.encodings.encoding import Encoding
from posexport.encodings.frequencies.config import from_config
from posexport.encodings.local_window import LocalWindow
from posexport.encodings.rope_base import rotation
from posexport.errors import PosexportError
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.models.modernbert import PooledClassification, PredictedTokens, Prediction
from posexport.nn.heads import Features, Head, QuestionAnswering, SentenceEmbedding, TokenClassification
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.family import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan
from posexport.sources.huggingface.sentence_transformers import Pooling

_KINDS = ("full_attention", "sliding_attention")


def _plan(config: Config, task: str, pooling: Pooling | None = None) -> Plan:
    settings = _settings(config)
    with torch.device("meta"):
        encoder = Encoder(settings, _encoding(config, settings))
        model = EncoderModel(encoder, _head(config, settings, task, pooling))
    origins = {name: _origin(name, task) for name, _ in model.named_parameters()}
    if task == "fill-mask":
        if config.flag("tie_word_embeddings", True):
            token, decoder = "encoder.embeddings.token.weight", "head.head.out.weight"
            origins[token] = Origin((*origins[token].names, *origins.pop(decoder).names))
            model.get_submodule("head.head.out").weight = encoder.embeddings.token.weight
        if not config.flag("decoder_bias", True):
            origins["head.head.out.bias"] = Origin(())
    return Plan(model, origins)


def _pooled(config: Config, pooling: Pooling) -> Plan:
    return _plan(config, "sentence-embedding", pooling)


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
        try:
            schedule = from_config(config.under({"rope_theta": base}), head_size=settings.head_size, layer_type=kind)
        except PosexportError as err:
            raise PosexportError(f"{config.label}: {err}") from err
        rotations[kind] = rotation(schedule, head_size=settings.head_size)
    side = config.size("local_attention", 128) // 2
    near = RotationAndTerm(rotations["sliding_attention"], LocalWindow(left=side, right=side))
    return ByLayer(rotations[kind] if kind == "full_attention" else near for kind in kinds)


def _head(config: Config, settings: EncoderConfig, task: str, pooling: Pooling | None) -> Head:
    hidden = settings.hidden
    if pooling is not None:
        pooling.check_width(hidden)
        return SentenceEmbedding(hidden, pooling.mode, pooling.normalise)
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


#: modules of the encoder and of a layer to the checkpoint's
_ONCE = {
    "embeddings.token": "model.embeddings.tok_embeddings",
    "embeddings.norm": "model.embeddings.norm",
    "final_norm": "model.final_norm",
}
_LAYER = {
    "attention.output": "attn.Wo",
    "attention_residual.norm": "attn_norm",
    "feedforward.outer": "mlp.Wo",
    "feedforward_residual.norm": "mlp_norm",
}
#: those that are a part of a larger one: its name, which part, of how many
_FUSED = {
    "attention.query": ("attn.Wqkv", 0, 3),
    "attention.key": ("attn.Wqkv", 1, 3),
    "attention.value": ("attn.Wqkv", 2, 3),
    "feedforward.inner": ("mlp.Wi", 0, 2),
    "feedforward.gate": ("mlp.Wi", 1, 2),
}


def _origin(parameter: str, task: str) -> Origin:
    module, _, leaf = parameter.rpartition(".")
    where, _, below = module.partition(".")
    if where == "head":
        return Origin((f"{_head_name(below, task)}.{leaf}",))
    if below in _ONCE:
        return Origin((f"{_ONCE[below]}.{leaf}",))
    _, index, part = below.split(".", 2)
    stem = f"model.layers.{index}"
    if part in _LAYER:
        return Origin((f"{stem}.{_LAYER[part]}.{leaf}",))
    name, which, parts = _FUSED[part]
    return Origin((f"{stem}.{name}.{leaf}",), part=(which, 1), parts=parts)


def _head_name(module: str, task: str) -> str:
    if module.startswith("prediction."):
        return f"head.{module.removeprefix('prediction.')}"
    return "decoder" if task == "fill-mask" else "classifier"


MODERNBERT = OwnFamily(
    model_type="modernbert",
    plan=_plan,
    pooled=_pooled,
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
        "head.": "a head's first map",
        "decoder.": "the fill-mask head",
        "classifier.": "a classification head",
    },
)
