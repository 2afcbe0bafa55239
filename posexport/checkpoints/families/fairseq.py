"""What BART, Marian and Whisper have in common: fairseq's names of parts, and the sizes of encoder and decoder.

``--task features`` reads the encoder alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Constant, Origin, Plan, Reshape, in_layers, origin, origins_of
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderConfig, LanguageModel
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.heads import HeadedEncoderDecoder
from posexport.nn.heads import Features
from posexport.nn.pooling import LastTokenClassification

GENERATION, CLASSIFICATION = "text2text-generation", "sequence-classification"
#: of a classifier's head
CLASSIFIER = {
    "head.dense": origin("classification_head.dense"),
    "head.out": origin("classification_head.out_proj"),
}
#: modules of a decoder-only layer to the checkpoint's
DECODER_LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_residual.norm": "self_attn_layer_norm",
    "feedforward.inner": "fc1",
    "feedforward.outer": "fc2",
    "feedforward_residual.norm": "final_layer_norm",
}
#: with cross attention
LAYER = DECODER_LAYER | {
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
}
#: parts of the encoder's and of the decoder's beginning and end
ENCODER = {
    "embeddings.encoding": "embed_positions",
    "embeddings.norm": "layernorm_embedding",
    "final_norm": "layer_norm",
}
DECODER = {"encoding": "embed_positions", "embedding_norm": "layernorm_embedding", "final_norm": "layer_norm"}
#: of older files
UNREAD = ("model.encoder.version", "model.decoder.version")


def text_plan(
    config: Config,
    task: str,
    encodings: tuple[Encoding, Encoding],
    *,
    constants: Mapping[str, Constant] | None = None,
    longest: int | None = None,
    shared: bool = True,
    tied: bool = True,
    decides: tuple[str, ...] = (),
    padding: int,
    **arrangement: Any,
) -> Plan:
    """The model for ``task``, of the encoder's and the decoder's encoding, which are on the meta device.

    Both read the same vocabulary through one table, which is the head's too. Without ``shared`` the encoder has a
    separate table, without ``tied`` the head.
    ``final_logits_bias`` is the head's bias. ``padding``: the id that fills padded places where config.json names none;
    ``decides``: keys that decide which tensors there are; ``arrangement``: what config.json never says.
    """
    if tied:
        config.only("the head and what it reads have one table", tie_word_embeddings=True)
    config.only("encoder and decoder have separate layers", tie_encoder_decoder=False)
    vocab = config.size("vocab_size")
    decoder_vocab = vocab if shared or task != GENERATION else config.size_or("decoder_vocab_size", vocab)
    padding = config.size("pad_token_id", padding, least=0, most=vocab - 1)
    if padding >= decoder_vocab:
        raise PosexportError(
            f"{config.label} has pad_token_id = {padding}, decoder_vocab_size = {decoder_vocab}; the decoder pads with "
            "it too, so that it must be less"
        )
    arrangement |= {
        "embedding_scale": math.sqrt(config.size("d_model")) if config.flag("scale_embedding", False) else 1.0,
        "padding_id": padding,
    }
    modules = named_layers("encoder", "groups", config) | named_layers("decoder", "layers", config)
    modules["head.out"] = origin("lm_head")
    both = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    before = both[:2] if shared else both[1:2]
    # the encoder alone, with a classifier, or with a decoder
    with torch.device("meta"):
        encoder = Encoder(
            EncoderConfig.of(vocab=vocab, types=0, **half(config, "encoder"), **arrangement), encodings[0]
        )
        if task not in (GENERATION, CLASSIFICATION):
            special = {"encoder.embeddings.token.weight": _table(before)}
            alone = EncoderModel(encoder, Features(encoder.config.hidden))
            origins, beside = origins_of(alone, modules, special), {"decoder.": "the decoder"}
            return Plan(alone, origins, longest, constants or {}, unread=UNREAD, beside=beside, decides=decides)
        settings = {**half(config, "decoder"), **arrangement, "cross_attention": True, "head_bias": True, "tied": tied}
        decoder = Decoder(DecoderConfig.of(vocab=decoder_vocab, **settings), encodings[1])
        if task == CLASSIFICATION:
            scored = classifier(config, encoder, decoder)
            modules |= CLASSIFIER
            special = {"encoder.embeddings.token.weight": _table(both)}
            return Plan(scored, origins_of(scored, modules, special), longest, constants or {}, unread=UNREAD)
        head = LanguageModel(decoder.config, encoder.embeddings.token if shared else decoder.token)
        model = EncoderDecoderModel(encoder, decoder, head, shared=shared)
    special = {
        "encoder.embeddings.token.weight": _table(both, "lm_head.weight") if shared else _table(before),
        "decoder.token.weight": _table(both[2:], "lm_head.weight" if tied else None),
        "head.out.bias": Origin(("final_logits_bias",), (Reshape((1, decoder_vocab)),), optional=True),
    }
    return Plan(model, origins_of(model, modules, special), longest, constants or {}, unread=UNREAD, decides=decides)


def classifier(config: Config, encoder: Encoder, decoder: Decoder) -> HeadedEncoderDecoder:
    """Encoder and decoder with a head that reads the last end token, on the device in use."""
    most = encoder.config.vocab - 1
    return HeadedEncoderDecoder(
        encoder,
        decoder,
        LastTokenClassification(encoder.config.hidden, config.labels(), "tanh"),
        start=config.size("decoder_start_token_id", least=0, most=most),
        end=config.size("eos_token_id", least=0, most=most),
    )


def _table(names: Sequence[str], head: str | None = None) -> Origin:
    return Origin((*(f"model.{name}" for name in names), *([] if head is None else [head])))


def half(config: Config, name: str) -> dict[str, Any]:
    """Sizes of the ``encoder`` or the ``decoder``."""
    hidden = config.size("d_model")
    return {
        "hidden": hidden,
        "heads": config.heads(hidden, f"{name}_attention_heads", "d_model"),
        "layers": config.size(f"{name}_layers", most=MOST_LAYERS),
        "feedforward": config.size(f"{name}_ffn_dim"),
        "activation": config.activation("activation_function", "gelu"),
        "eps": 1e-5,
    }


def named_layers(half: str, layers: str, config: Config) -> dict[str, Origin]:
    """The parts of the ``encoder`` or the ``decoder``; ``layers`` is what its layers are called here."""
    once = {f"{half}.{path}": origin(f"model.{half}.{stored}") for path, stored in (ENCODER | DECODER).items()}
    count = config.size(f"{half}_layers", most=MOST_LAYERS)
    return once | in_layers(count, f"{half}.{layers}", f"model.{half}.layers.{{i}}.", LAYER)


def seq2seq_family(
    model_type: str,
    build: Callable[[Config, str], Plan],
    architecture: str,
    task: str = GENERATION,
    *,
    more: Mapping[str, str] | None = None,
) -> Family:
    """A family with checkpoints of class ``architecture`` for ``task``; ``more``: further classes and their tasks."""
    return Family(
        model_type=model_type,
        build=build,
        prefix="model",
        roots=("shared.", "encoder.", "decoder."),
        architectures={architecture: task, **(more or {})},
        tasks=("features",),
        advice=f"choose --task {task}, or --task features for the encoder's states alone",
        other_heads={
            "lm_head.": "the language-model head",
            "proj_out.": "the language-model head",
            "final_logits_bias": "the language-model head",
            "classification_head.": "a classification head",
            "qa_outputs.": "the question-answering head",
        },
        allowed=("is_encoder_decoder",),
    )
