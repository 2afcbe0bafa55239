"""DeBERTa, versions 1, 2 and 3: disentangled attention to content and to the relative position.

With ``position_biased_input`` absolute positions are added at the input, ``pos_att_type`` may name one of the two
position terms alone or none, and version 2 may have a convolution after its first layer. Padded queries attend to all
tokens uniformly in transformers, here to the unpadded ones: outputs of padded tokens differ, which no other token sees.
Not read: talking heads, the decoder of version 3's pre-training.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import encoder
from posexport.checkpoints.families.bert import EMBEDDINGS, FILL_MASK, POSITIONS, POST_NORM, SUBLAYERS
from posexport.checkpoints.mapping import ZEROS, Origin, Plan, SplitFused
from posexport.encodings.deberta import Deberta
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.nn.feed_forward import TokenConvolution

#: of the table's normalisation in `Deberta`, and of every released checkpoint
_EPS = 1e-7
Terms = Literal["both", "c2p", "p2c"]
_SELF = "encoder.layer.{i}.attention.self"
_TABLE = {"attention.encoding": "encoder.rel_embeddings", "attention.encoding.table_norm": "encoder.LayerNorm"}
_ONCE = EMBEDDINGS | POSITIONS | {"convolution.conv": "encoder.conv.conv", "convolution.norm": "encoder.conv.LayerNorm"}
#: where ``legacy`` is false
_NEWER_FILL_MASK = encoder.FillMaskNames(
    dense="lm_predictions.lm_head.dense",
    norm="lm_predictions.lm_head.LayerNorm",
    decoder=None,
    bias=("lm_predictions.lm_head.bias",),
)
_CLASSIFIER = encoder.ClassifierNames(dense="pooler.dense", out="classifier", activation="gelu")
_HEADS = {
    "cls.predictions.": "the fill-mask head",
    "lm_predictions.": "the newer fill-mask head",
    "mask_predictions.": "the replaced-token head",
    "pooler.": "the classifier's pooler",
    "classifier.": "a classification head",
    "qa_outputs.": "the question-answering head",
}


def _settings(config: Config) -> EncoderConfig:
    _check(config)
    return encoder.settings(config, default_eps=_EPS, types=config.size("type_vocab_size", 0, least=0))


def _check(config: Config) -> None:
    """Raises PosexportError for settings that this family does not support."""
    config.only("mixing the heads' scores is not read", talking_head=False)
    hidden = config.size("hidden_size")
    for key in ("embedding_size", "pooler_hidden_size"):
        if config.size(key, hidden) != hidden:
            raise PosexportError(f"{config.label} says {key} = {config.size(key)}; it must be hidden_size = {hidden}")
    heads = config.size("num_attention_heads")
    if (size := config.size("attention_head_size", hidden // heads)) * heads != hidden:
        raise PosexportError(
            f"{config.label} says attention_head_size = {size}; it must be hidden_size / num_attention_heads"
        )
    if (pooled := config.text("pooler_hidden_act", "gelu")) != "gelu":
        raise PosexportError(f"{config.label} says pooler_hidden_act = {pooled!r:.60}; only gelu is read")


def _terms(config: Config) -> Terms | None:
    """The position terms of the scores; None without any."""
    stated = config.values.get("pos_att_type")
    terms = stated.lower().split("|") if isinstance(stated, str) else stated or []
    named = sorted(str(term).strip() for term in terms if term) if isinstance(terms, list) else ["?"]
    relative = config.flag("relative_attention", False)
    match named:
        case []:
            return None
        case ["c2p", "p2c"] if relative:
            return "both"
        case ["c2p"] if relative:
            return "c2p"
        case ["p2c"] if relative:
            return "p2c"
    raise PosexportError(
        f"{config.label} says pos_att_type = {stated!r:.60}, relative_attention = {str(relative).lower()}; the terms "
        "that are read are c2p and p2c, with relative_attention = true"
    )


def _span(config: Config) -> int:
    """How many distances on a side the table would hold without buckets."""
    span = config.size("max_relative_positions", -1, least=-1)
    return config.size("max_position_embeddings") if span < 1 else span


def _positions(
    config: Config, settings: EncoderConfig, relative: Callable[[Terms], Encoding]
) -> tuple[Encoding, Encoding | None]:
    """Returns the encoding of the layers, ``relative`` of its terms, and the additional encoding of the embeddings."""
    at_input = encoder.absolute(config, settings) if config.flag("position_biased_input", True) else None
    terms = _terms(config)
    if terms is None:
        return at_input or NoPE(), None
    with torch.device("meta"):
        return relative(terms), at_input


def _fill_mask(config: Config) -> encoder.FillMaskNames:
    return FILL_MASK if config.flag("legacy", True) else _NEWER_FILL_MASK


def _with_unread(plan: Plan) -> Plan:
    """Without a position term the table of distances and its normalisation are in the file and not used."""
    if any(name.endswith("attention.encoding.table") for name in plan.origins):
        return plan
    names = ("rel_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")
    return replace(plan, unread=(*plan.unread, *(f"deberta.encoder.{name}" for name in names)))


def _encoding(config: Config, settings: EncoderConfig, terms: Terms) -> Encoding:
    norms = [word.strip() for word in config.text("norm_rel_ebd", "none").lower().split("|")]
    if not set(norms) <= {"none", "layer_norm"}:
        raise PosexportError(
            f"{config.label} says norm_rel_ebd = {config.text('norm_rel_ebd')!r:.60}; it must be none or layer_norm"
        )
    normed = "layer_norm" in norms
    eps = settings.layer.norm.eps
    if normed and eps != _EPS:
        raise PosexportError(
            f"{config.label} says layer_norm_eps = {eps}; with norm_rel_ebd = layer_norm it must be {_EPS}"
        )
    buckets, span = config.size("position_buckets", -1, least=-1), _span(config)
    try:
        return Deberta(
            hidden=settings.hidden,
            heads=settings.heads,
            head_size=settings.head_size,
            span=buckets if buckets > 0 else span,
            max_distance=span if buckets > 0 else None,
            table_norm=normed,
            terms=terms,
        )
    except PosexportError as err:
        raise PosexportError(f"{config.label}: position_buckets and max_relative_positions do not fit: {err}") from err


def _deberta(config: Config, task: str) -> Plan:
    settings = _settings(config)
    qkv = f"{_SELF}.in_proj.weight"
    names = encoder.Names(
        prefix="deberta",
        once=_ONCE,
        layer=SUBLAYERS
        | POST_NORM
        | _TABLE
        | {"attention.encoding.pos_key": f"{_SELF}.pos_proj", "attention.encoding.pos_query": f"{_SELF}.pos_q_proj"},
        # one matrix holds query, key and value of head 0, then of head 1 ...; only queries and values have a bias
        parameters={
            "attention.query.weight": Origin((qkv,), (SplitFused(0, groups=settings.heads),)),
            "attention.key.weight": Origin((qkv,), (SplitFused(1, groups=settings.heads),)),
            "attention.value.weight": Origin((qkv,), (SplitFused(2, groups=settings.heads),)),
            "attention.query.bias": f"{_SELF}.q_bias",
            "attention.value.bias": f"{_SELF}.v_bias",
            "attention.key.bias": ZEROS,
            "attention.encoding.pos_key.bias": ZEROS,
        },
        fill_mask=_fill_mask(config),
        classifier=_CLASSIFIER,
    )

    def relative(terms: Terms) -> Encoding:
        hidden, heads, size = settings.hidden, settings.heads, settings.head_size
        return Deberta(hidden=hidden, heads=heads, head_size=size, span=_span(config), terms=terms)

    config.only("version 1 has no convolution", conv_kernel_size=0)
    encoding, at_input = _positions(config, settings, relative)
    return _with_unread(encoder.plan(config, task, names, settings, encoding, at_input=at_input))


def _deberta_v2(config: Config, task: str) -> Plan:
    settings = _settings(config)
    names = encoder.Names(
        prefix="deberta",
        once=_ONCE,
        layer=SUBLAYERS
        | POST_NORM
        | _TABLE
        | {
            "attention.query": f"{_SELF}.query_proj",
            "attention.key": f"{_SELF}.key_proj",
            "attention.value": f"{_SELF}.value_proj",
            "attention.encoding.pos_key": f"{_SELF}.pos_key_proj",
            "attention.encoding.pos_query": f"{_SELF}.pos_query_proj",
        },
        fill_mask=_fill_mask(config),
        classifier=_CLASSIFIER,
    )
    # positions go through the projections of the content's keys and queries
    terms = {"both": ("pos_key", "pos_query"), "c2p": ("pos_key",), "p2c": ("pos_query",), None: ()}[_terms(config)]
    shared = {term: term.removeprefix("pos_") for term in terms} if config.flag("share_att_key", False) else {}
    encoding, at_input = _positions(config, settings, functools.partial(_encoding, config, settings))
    convolution = _convolution(config, settings)
    plan = encoder.plan(
        config, task, names, settings, encoding, shared=shared, at_input=at_input, convolution=convolution
    )
    return _with_unread(plan)


def _convolution(config: Config, settings: EncoderConfig) -> TokenConvolution | None:
    kernel = config.size_or("conv_kernel_size", 0, least=0)
    if not kernel:
        return None
    groups, name = config.size("conv_groups", 1), config.activation("conv_act", "tanh")
    with config.named_in_errors(), torch.device("meta"):
        return TokenConvolution(
            settings.hidden, settings.layer.norm, kernel=kernel, groups=groups, activation_name=name
        )


DEBERTA = encoder.family("deberta", _deberta, "deberta", other_heads=_HEADS)
DEBERTA_V2 = encoder.family("deberta-v2", _deberta_v2, "deberta", other_heads=_HEADS)
