"""T5, mT5 and UMT5: a learned bias by bucket of distance, in the encoder both ways, in the decoder one way.

Raffel et al. (arXiv:1910.10683), released code. T5 and mT5 have one table for all layers of a stack, stored in
the first; UMT5 has one in every layer. ``--task features`` reads the encoder alone.
"""

import functools
from typing import Any

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.fairseq import CLASSIFICATION, CLASSIFIER, GENERATION, classifier
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Origin, Plan, in_layers, origin, origins_of
from posexport.encodings import t5
from posexport.encodings.compose import ByLayer
from posexport.encodings.encoding import Encoding
from posexport.encodings.rope.release import release_of
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderConfig, LanguageModel
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.heads import HeadedEncoderDecoder
from posexport.models.layer import TransformerConfig
from posexport.nn.feed_forward import ACTIVATIONS
from posexport.nn.heads import Features, Head, TokenClassification

#: modules of a layer to the checkpoint's
_LAYER = {
    "attention.query": "layer.0.SelfAttention.q",
    "attention.key": "layer.0.SelfAttention.k",
    "attention.value": "layer.0.SelfAttention.v",
    "attention.output": "layer.0.SelfAttention.o",
    "attention.encoding": "layer.0.SelfAttention.relative_attention_bias",
    "attention_residual.norm": "layer.0.layer_norm",
}
_CROSS = {
    "cross_attention.query": "layer.1.EncDecAttention.q",
    "cross_attention.key": "layer.1.EncDecAttention.k",
    "cross_attention.value": "layer.1.EncDecAttention.v",
    "cross_attention.output": "layer.1.EncDecAttention.o",
    "cross_residual.norm": "layer.1.layer_norm",
}
#: after the attentions
_FEEDFORWARD = {"feedforward.outer": "DenseReluDense.wo", "feedforward_residual.norm": "layer_norm"}
_PLAIN = {"feedforward.inner": "DenseReluDense.wi"}
_GATED = {"feedforward.inner": "DenseReluDense.wi_0", "feedforward.gate": "DenseReluDense.wi_1"}
#: of older files, which nothing has ever read
_UNREAD = ("transformer.decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


def _build(
    config: Config, task: str, *, feedforward: str, table_in_every_layer: bool = False, tied: bool = True
) -> Plan:
    """``tied``: the head has the embeddings' weights where config.json does not say."""
    arrangement = _arrangement(config, feedforward)
    settings = EncoderConfig.of(types=0, **arrangement)
    modules = {"head.out": origin("lm_head" if task == GENERATION else "classifier")}
    model: EncoderModel | EncoderDecoderModel | HeadedEncoderDecoder
    # the encoder alone, with a classifier, or with a decoder
    with torch.device("meta"):
        encoder = Encoder(settings, _encoding(config, settings, table_in_every_layer, bidirectional=True))
        modules |= _modules("encoder", "groups", settings)
        modules["encoder.embeddings.encoding"] = modules["encoder.groups.0.attention.encoding"]
        if task in (GENERATION, CLASSIFICATION):
            after = _after(config, arrangement, tied)
            decoder = Decoder(after, _encoding(config, after, table_in_every_layer, bidirectional=False))
            modules |= _modules("decoder", "layers", after)
            modules["decoder.encoding"] = modules["decoder.layers.0.attention.encoding"]
            if task == GENERATION:
                model = EncoderDecoderModel(encoder, decoder, LanguageModel(after, encoder.embeddings.token))
            else:
                model = classifier(config, encoder, decoder)
                modules |= CLASSIFIER
        else:
            after = None
            model = EncoderModel(encoder, _head(config, settings, task))
    # the embedding has several names in the file, and must be equal under all
    tables = ["shared.weight", "encoder.embed_tokens.weight", *(["decoder.embed_tokens.weight"] if after else [])]
    tied_head = task == GENERATION and after is not None and after.head.tied
    tokens = [f"transformer.{table}" for table in tables] + (["lm_head.weight"] if tied_head else [])
    special = {"encoder.embeddings.token.weight": Origin(tuple(tokens))}
    beside = {} if after else {"decoder.": "the decoder"}
    return Plan(model, origins_of(model, modules, special), unread=_UNREAD, beside=beside)


def _modules(half: str, layers: str, settings: TransformerConfig) -> dict[str, Origin]:
    """The parts of the ``encoder`` or the ``decoder``; ``layers`` is what its layers are called here."""
    last = 2 if settings.layer.cross_attention else 1
    feedforward = _FEEDFORWARD | (_GATED if settings.layer.feedforward.gated else _PLAIN)
    names = _LAYER | (_CROSS if settings.layer.cross_attention else {})
    names |= {name: f"layer.{last}.{stored}" for name, stored in feedforward.items()}
    norm = {f"{half}.final_norm": origin(f"transformer.{half}.final_layer_norm")}
    return norm | in_layers(settings.layers, f"{half}.{layers}", f"transformer.{half}.block.{{i}}.", names)


def _after(config: Config, arrangement: dict[str, Any], default: bool) -> DecoderConfig:
    """The decoder's sizes: the encoder's, but for the number of layers.

    What the head reads is scaled where it is tied. transformers 5 says tied in any case: there T5 has a key for that,
    and mT5 never does it. ``default``: whether it is tied where the file does not say.
    """
    layers = config.size_or("num_decoder_layers", arrangement["layers"], most=MOST_LAYERS)
    tied = config.flag("tie_word_embeddings", default)
    never = config.values.get("model_type") == "mt5" and (release_of(config.values) or 4) >= 5
    scaled = config.flag("scale_decoder_outputs", tied and not never)
    changed = {"layers": layers, "cross_attention": True, "tied": tied}
    head_scale = arrangement["hidden"] ** -0.5 if scaled else 1.0
    return DecoderConfig.of(**{**arrangement, **changed}, head_scale=head_scale)


def _arrangement(config: Config, feedforward: str) -> dict[str, Any]:
    vocab = config.size("vocab_size")
    activation, gated = _feedforward(config, feedforward)
    return {
        "vocab": vocab,
        "hidden": config.size("d_model"),
        "heads": config.size("num_heads"),
        "head_width": config.size("d_kv"),
        "layers": config.size("num_layers", most=MOST_LAYERS),
        "feedforward": config.size("d_ff"),
        "activation": activation,
        "gated": gated,
        "scaled": False,
        "attention_bias": False,
        "feedforward_bias": False,
        "norm": "pre",
        "norm_kind": "rms",
        "embedding_norm": False,
        "final_norm": True,
        "eps": config.number("layer_norm_epsilon", 1e-6),
        "padding_id": config.size("pad_token_id", 0, least=0, most=vocab - 1),
    }


def _feedforward(config: Config, default: str) -> tuple[str, bool]:
    """The activation and whether it is gated: ``gated-gelu`` means the approximation by tanh, as released.

    ``dense_act_fn`` and ``is_gated_act``, which transformers derives from ``feed_forward_proj`` and saves with it,
    take precedence if the file has them, as in transformers 4.57.6 and 5.23.0.
    """
    text = config.text("feed_forward_proj", default)
    gated = text.startswith("gated-")
    name = "gelu_new" if text == "gated-gelu" else text.removeprefix("gated-")
    if name not in ACTIVATIONS:
        raise PosexportError(
            f"{config.label} says feed_forward_proj = {text!r:.60}; it must be gated- or nothing, and then one of "
            f"{', '.join(sorted(ACTIVATIONS))}"
        )
    stated = (
        config.activation("dense_act_fn", name) if "dense_act_fn" in config.values else name,
        config.flag("is_gated_act", gated),
    )
    if stated != (name, gated):
        config.remark(
            f"says feed_forward_proj = {text}, dense_act_fn = {stated[0]}, is_gated_act = {stated[1]}; transformers "
            "reads the last two, and so they are what is computed"
        )
    return stated


def _encoding(
    config: Config, settings: TransformerConfig, table_in_every_layer: bool, *, bidirectional: bool
) -> Encoding:
    tables = [_table(config, settings, bidirectional) for _ in range(settings.layers if table_in_every_layer else 1)]
    return ByLayer(tables) if table_in_every_layer else tables[0]


def _table(config: Config, settings: TransformerConfig, bidirectional: bool) -> Encoding:
    buckets = config.size("relative_attention_num_buckets", 32)
    farthest = config.size("relative_attention_max_distance", 128)
    try:
        return t5.T5(heads=settings.heads, buckets=buckets, max_distance=farthest, bidirectional=bidirectional)
    except PosexportError as err:
        raise PosexportError(
            f"{config.label} says relative_attention_num_buckets = {buckets}, relative_attention_max_distance = "
            f"{farthest}; that does not fit: {err}"
        ) from err


def _head(config: Config, settings: EncoderConfig, task: str) -> Head:
    if task == "token-classification":
        return TokenClassification(settings.hidden, config.labels())
    return Features(settings.hidden)


def _family(model_type: str, **options: Any) -> Family:
    return Family(
        model_type=model_type,
        build=functools.partial(_build, **options),
        prefix="transformer",
        roots=("shared.", "encoder.", "decoder."),
        architectures={
            "EncoderModel": "features",
            "ForTokenClassification": "token-classification",
            "ForSequenceClassification": CLASSIFICATION,
            "ForConditionalGeneration": GENERATION,
            "WithLMHeadModel": GENERATION,
        },
        other_heads={
            "lm_head.": "the language-model head",
            "classifier.": "a classification head",
            "classification_head.": "a classification head",
            "qa_outputs.": "the question-answering head",
        },
        allowed=("is_encoder_decoder",),
        advice="choose --task text2text-generation, or --task features for the encoder's states alone",
    )


T5 = _family("t5", feedforward="relu")
MT5 = _family("mt5", feedforward="gated-gelu", tied=False)
UMT5 = _family("umt5", feedforward="gated-gelu", table_in_every_layer=True)
