"""DeBERTa, versions 1, 2 and 3: disentangled attention to content and to the relative position, no absolute positions.

Padded queries attend to all tokens alike in transformers, and here to the real ones: rows of padding differ, which no
real token sees. Not read: absolute positions added at the input beside the relative ones (``position_biased_input``),
version 2's convolution, one of the two position terms alone, talking heads, the decoder of versions 3's pre-training.
"""

import torch

from posexport.encodings.deberta import Deberta
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.families import encoder
from posexport.sources.huggingface.families.bert import EMBEDDINGS, FILL_MASK, POST_NORM, SUBLAYERS
from posexport.sources.huggingface.plan import ZEROS, Origin, Plan
from posexport.sources.huggingface.transforms import SplitFused

#: of the table's normalisation in `Deberta`, and of every released checkpoint
_EPS = 1e-7
_SELF = "encoder.layer.{i}.attention.self"
_TABLE = {"attention.encoding": "encoder.rel_embeddings", "attention.encoding.table_norm": "encoder.LayerNorm"}
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
    """PosexportError for what is not read."""
    for key, needed, reason in (
        ("relative_attention", True, "without relative positions there is nothing of DeBERTa's to read"),
        ("position_biased_input", False, "absolute positions beside the relative ones are not read"),
        ("talking_head", False, "mixing the heads' scores is not read"),
        ("legacy", True, "only the fill-mask head under cls.predictions is read"),
    ):
        # what the configuration's classes take where the file says nothing
        default = key in ("position_biased_input", "legacy")
        if config.flag(key, default) is not needed:
            got = str(config.flag(key, default)).lower()
            raise PosexportError(f"{config.label} has {key} = {got}: {reason}; it must be {str(needed).lower()}")
    terms = config.values.get("pos_att_type")
    listed = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    if not isinstance(listed, list) or sorted(map(str, listed)) != ["c2p", "p2c"]:
        raise PosexportError(f"{config.label} says pos_att_type = {terms!r:.60}; only c2p and p2c together are read")
    if config.values.get("conv_kernel_size", 0) not in (0, None):
        raise PosexportError(
            f"{config.label} says conv_kernel_size = {config.values['conv_kernel_size']!r:.60}; the convolution beside "
            f"the first layer is not read"
        )
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


def _span(config: Config) -> int:
    """How many distances on a side the table would hold without buckets."""
    span = config.size("max_relative_positions", -1, least=-1)
    return config.size("max_position_embeddings") if span < 1 else span


def _encoding(config: Config, settings: EncoderConfig) -> Encoding:
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
        )
    except PosexportError as err:
        raise PosexportError(f"{config.label}: position_buckets and max_relative_positions do not fit: {err}") from err


def _deberta(config: Config, task: str) -> Plan:
    settings = _settings(config)
    qkv = f"{_SELF}.in_proj.weight"
    names = encoder.Names(
        prefix="deberta",
        once=EMBEDDINGS,
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
        fill_mask=FILL_MASK,
        classifier=_CLASSIFIER,
    )
    with torch.device("meta"):
        encoding = Deberta(
            hidden=settings.hidden, heads=settings.heads, head_size=settings.head_size, span=_span(config)
        )
    return encoder.plan(config, task, names, settings, encoding)


def _deberta_v2(config: Config, task: str) -> Plan:
    settings = _settings(config)
    names = encoder.Names(
        prefix="deberta",
        once=EMBEDDINGS,
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
        fill_mask=FILL_MASK,
        classifier=_CLASSIFIER,
    )
    # positions go through the projections of the content's keys and queries
    shared = {"pos_key": "key", "pos_query": "query"} if config.flag("share_att_key", False) else {}
    with torch.device("meta"):
        encoding = _encoding(config, settings)
    return encoder.plan(config, task, names, settings, encoding, shared=shared)


DEBERTA = encoder.family("deberta", _deberta, "deberta", other_heads=_HEADS)
DEBERTA_V2 = encoder.family("deberta-v2", _deberta_v2, "deberta", other_heads=_HEADS)
