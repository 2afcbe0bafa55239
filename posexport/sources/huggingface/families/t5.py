"""T5, mT5 and UMT5: the encoder alone, with its learned bias by bucket of distance.

T5 and mT5 have one table for all layers, which stands in the first; UMT5 has one in every layer. T5's
``ForConditionalGeneration`` checkpoints are read with ``--task features``, which leaves the decoder out.
"""

import functools

import torch

from posexport.encodings import t5
from posexport.encodings.base import Encoding
from posexport.encodings.compose import ByLayer
from posexport.errors import PosexportError
from posexport.models.encoder import Encoder, EncoderConfig
from posexport.models.heads import Features, Head, SentenceEmbedding, TokenClassification
from posexport.models.task import EncoderModel
from posexport.nn.activations import ACTIVATIONS
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.base import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan, origins_of
from posexport.sources.huggingface.sentence_transformers import Pooling

_BLOCK = "transformer.encoder.block.{i}"
#: modules of a layer to the checkpoint's
_LAYER = {
    "attention.query": f"{_BLOCK}.layer.0.SelfAttention.q",
    "attention.key": f"{_BLOCK}.layer.0.SelfAttention.k",
    "attention.value": f"{_BLOCK}.layer.0.SelfAttention.v",
    "attention.output": f"{_BLOCK}.layer.0.SelfAttention.o",
    "attention.encoding": f"{_BLOCK}.layer.0.SelfAttention.relative_attention_bias",
    "attention_residual.norm": f"{_BLOCK}.layer.0.layer_norm",
    "feedforward.outer": f"{_BLOCK}.layer.1.DenseReluDense.wo",
    "feedforward_residual.norm": f"{_BLOCK}.layer.1.layer_norm",
}
_PLAIN = {"feedforward.inner": f"{_BLOCK}.layer.1.DenseReluDense.wi"}
_GATED = {
    "feedforward.inner": f"{_BLOCK}.layer.1.DenseReluDense.wi_0",
    "feedforward.gate": f"{_BLOCK}.layer.1.DenseReluDense.wi_1",
}


def _plan(
    config: Config, task: str, pooling: Pooling | None = None, *, feedforward: str, table_in_every_layer: bool
) -> Plan:
    settings = _settings(config, feedforward)
    with torch.device("meta"):
        tables = [_encoding(config, settings) for _ in range(settings.layers if table_in_every_layer else 1)]
        encoder = Encoder(settings, ByLayer(tables) if table_in_every_layer else tables[0])
        model = EncoderModel(encoder, _head(config, settings, task, pooling))
    stems = {
        "encoder.embeddings.encoding": _LAYER["attention.encoding"].format(i=0),
        "encoder.final_norm": "transformer.encoder.final_layer_norm",
        "head.out": "classifier",
    }
    for i in range(settings.layers):
        for ours, theirs in (_LAYER | (_GATED if settings.gated else _PLAIN)).items():
            stems[f"encoder.groups.{i}.{ours}"] = theirs.format(i=i)
    token = "encoder.embeddings.token.weight"
    special = {token: Origin(("transformer.shared.weight", "transformer.encoder.embed_tokens.weight"))}
    return Plan(model, origins_of(model, stems, special))


def _settings(config: Config, feedforward: str) -> EncoderConfig:
    vocab = config.size("vocab_size")
    activation, gated = _feedforward(config, feedforward)
    return EncoderConfig(
        vocab=vocab,
        hidden=config.size("d_model"),
        heads=config.size("num_heads"),
        head_width=config.size("d_kv"),
        layers=config.size("num_layers", most=MOST_LAYERS),
        feedforward=config.size("d_ff"),
        types=0,
        activation=activation,
        gated=gated,
        scaled=False,
        attention_bias=False,
        feedforward_bias=False,
        norm="pre",
        norm_kind="rms",
        embedding_norm=False,
        final_norm=True,
        eps=config.number("layer_norm_epsilon", 1e-6),
        padding_id=config.size("pad_token_id", 0, least=0, most=vocab - 1),
    )


def _feedforward(config: Config, default: str) -> tuple[str, bool]:
    """The activation and whether it is gated: ``gated-gelu`` means the approximation by tanh, as released."""
    text = config.text("feed_forward_proj", default)
    gated = text.startswith("gated-")
    name = "gelu_new" if text == "gated-gelu" else text.removeprefix("gated-")
    if name not in ACTIVATIONS:
        raise PosexportError(
            f"{config.label} says feed_forward_proj = {text!r:.60}; it must be gated- or nothing, and then one of "
            f"{', '.join(sorted(ACTIVATIONS))}"
        )
    return name, gated


def _encoding(config: Config, settings: EncoderConfig) -> Encoding:
    buckets = config.size("relative_attention_num_buckets", 32)
    farthest = config.size("relative_attention_max_distance", 128)
    try:
        return t5.T5(heads=settings.heads, buckets=buckets, max_distance=farthest)
    except PosexportError as err:
        raise PosexportError(
            f"{config.label} says relative_attention_num_buckets = {buckets}, relative_attention_max_distance = "
            f"{farthest}; that does not fit: {err}"
        ) from err


def _head(config: Config, settings: EncoderConfig, task: str, pooling: Pooling | None) -> Head:
    if pooling is not None:
        pooling.check_width(settings.hidden)
        return SentenceEmbedding(settings.hidden, pooling.mode, pooling.normalise)
    if task == "token-classification":
        return TokenClassification(settings.hidden, config.labels())
    return Features(settings.hidden)


def _family(model_type: str, *, feedforward: str, table_in_every_layer: bool = False) -> OwnFamily:
    plan = functools.partial(_plan, feedforward=feedforward, table_in_every_layer=table_in_every_layer)

    def pooled(config: Config, pooling: Pooling) -> Plan:
        return plan(config, "sentence-embedding", pooling)

    return OwnFamily(
        model_type=model_type,
        plan=plan,
        pooled=pooled,
        prefix="transformer",
        roots=("shared.", "encoder.", "decoder."),
        architectures={"EncoderModel": "features", "ForTokenClassification": "token-classification"},
        other_heads={
            "lm_head.": "the language-model head",
            "classifier.": "a classification head",
            "classification_head.": "a classification head",
            "qa_outputs.": "the question-answering head",
        },
        beside={"decoder.": "the decoder"},
        allowed=("is_encoder_decoder",),
        advice="only the encoder is read today, the decoder is not; ask for the encoder's states with --task features",
    )


T5 = _family("t5", feedforward="relu")
MT5 = _family("mt5", feedforward="gated-gelu")
UMT5 = _family("umt5", feedforward="gated-gelu", table_in_every_layer=True)
