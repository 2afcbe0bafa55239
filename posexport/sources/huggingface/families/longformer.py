"""Longformer: a window of attention per layer, tokens with global attention, positions counted after the padding id.

Where ``global_attention_mask`` marks nothing in a row, a classifier's first token is marked, and the question (all
before the first separator) in question answering, as transformers does where it gets no mask. It then demands three
separators in every row; here a row without any has no question, and any number but none is taken.
"""

import torch

from posexport.encodings.absolute import Absolute
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.models.longformer import Default, Longformer, LongformerModel
from posexport.nn.heads import (
    FillMask,
    Head,
    SentenceEmbedding,
    plain_head,
)
from posexport.sources.huggingface.config import LARGEST, MOST_LAYERS, Config
from posexport.sources.huggingface.families.bert import EMBEDDINGS, POST_NORM, SUBLAYERS
from posexport.sources.huggingface.families.decoder_bias import biases
from posexport.sources.huggingface.families.family import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan, origins_of
from posexport.sources.huggingface.sentence_transformers import Pooling

_DEFAULTS: dict[str, Default] = {"sequence-classification": "first", "question-answering": "question"}
_LAYER = (
    {ours: theirs for ours, theirs in SUBLAYERS.items() if ours != "attention.encoding"}
    | POST_NORM
    | {
        f"{ours}_global": f"{SUBLAYERS[ours]}_global"
        for ours in ("attention.query", "attention.key", "attention.value")
    }
)
_HEADS = {
    "fill-mask": {"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "decoder": "lm_head.decoder"},
    "sequence-classification": {"dense": "classifier.dense", "out": "classifier.out_proj"},
    "token-classification": {"out": "classifier"},
    "question-answering": {"out": "qa_outputs"},
}


def _plan(config: Config, task: str, pooling: Pooling | None = None) -> Plan:
    settings = _settings(config)
    positions = config.size("max_position_embeddings")
    if positions <= settings.padding_id + 1:
        raise PosexportError(
            f"{config.label} says max_position_embeddings = {positions}; positions start at pad_token_id + 1 = "
            f"{settings.padding_id + 1}, so it must be greater"
        )
    with torch.device("meta"):
        encoding = Absolute(max_positions=positions, hidden=settings.hidden)
        encoder = Longformer(settings, encoding, _windows(config, settings.layers))
        head = _head(config, settings, task, pooling)
        default = _DEFAULTS.get(task, "none")
        model = LongformerModel(encoder, head, default=default, separator=config.size("sep_token_id", 2, least=0))
    origins = _origins(model, settings.layers, task)
    unread: tuple[str, ...] = ()
    if isinstance(head, FillMask):
        tied = config.flag("tie_word_embeddings", True)
        read, unread = biases(config, ("lm_head.bias", "lm_head.decoder.bias"), "lm_head.decoder", tied=tied)
        origins["head.decoder.bias"] = Origin(read)
        if tied:
            token, decoder = "encoder.embeddings.token.weight", "head.decoder.weight"
            origins[token] = Origin((*origins[token].names, *origins.pop(decoder).names))
            head.decoder.weight = encoder.embeddings.token.weight
    return Plan(model, origins, unread=unread)


def _pooled(config: Config, pooling: Pooling) -> Plan:
    return _plan(config, "sentence-embedding", pooling)


def _settings(config: Config) -> EncoderConfig:
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % heads:
        raise PosexportError(
            f"{config.label} says hidden_size = {hidden}, num_attention_heads = {heads}; the heads must divide the size"
        )
    vocab = config.size("vocab_size")
    return EncoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=heads,
        layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=config.size("intermediate_size"),
        types=config.size("type_vocab_size", 2),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.number("layer_norm_eps", 1e-12),
        padding_id=config.size("pad_token_id", 1, least=0, most=vocab - 1),
    )


def _windows(config: Config, layers: int) -> list[int]:
    given = config.values.get("attention_window", 512)
    windows = given if isinstance(given, list) else [given] * layers
    fit = all(isinstance(w, int) and not isinstance(w, bool) and 2 <= w <= LARGEST and w % 2 == 0 for w in windows)
    if not fit or len(windows) != layers:
        raise PosexportError(
            f"{config.label} says attention_window = {given!r:.60}; it must be an even number from 2 on, or a list of "
            f"num_hidden_layers = {layers} of them"
        )
    return windows


def _head(config: Config, settings: EncoderConfig, task: str, pooling: Pooling | None) -> Head:
    hidden = settings.hidden
    if pooling is not None:
        pooling.check_width(hidden)
        return SentenceEmbedding(hidden, pooling.mode, pooling.normalise)
    if task == "fill-mask":
        return FillMask(hidden, hidden, settings.vocab, "gelu", settings.layer.norm.eps)
    return plain_head(task, hidden, config.labels())


def _origins(model: LongformerModel, layers: int, task: str) -> dict[str, Origin]:
    stems = {f"encoder.{ours}": f"longformer.{theirs}" for ours, theirs in EMBEDDINGS.items()}
    stems |= {
        f"encoder.layers.{i}.{ours}": f"longformer.{theirs.format(i=i)}"
        for i in range(layers)
        for ours, theirs in _LAYER.items()
    }
    stems |= {f"head.{ours}": theirs for ours, theirs in _HEADS.get(task, {}).items()}
    return origins_of(model, stems)


LONGFORMER = OwnFamily(
    model_type="longformer",
    plan=_plan,
    pooled=_pooled,
    prefix="longformer",
    roots=("embeddings.", "encoder.", "pooler."),
    pooler="pooler.dense",
    architectures={
        "ForMaskedLM": "fill-mask",
        "ForSequenceClassification": "sequence-classification",
        "ForTokenClassification": "token-classification",
        "ForQuestionAnswering": "question-answering",
        "Model": "features",
    },
    other_heads={
        "lm_head.": "the fill-mask head",
        "classifier.": "a classification head",
        "qa_outputs.": "the question-answering head",
    },
)
