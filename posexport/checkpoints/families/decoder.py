"""What families of causal decoders share: from a checkpoint's names for the parts to a plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import NameMap, Origin, Plan, SplitFused, in_layers, origin, origins_of
from posexport.encodings.encoding import Encoding
from posexport.models.decoder import Decoder, DecoderConfig, DecoderModel, LanguageModel
from posexport.models.definition import Definition
from posexport.models.heads import HeadedDecoder
from posexport.nn.heads import Features


@dataclass(frozen=True, kw_only=True)
class Names:
    """Modules of a `Decoder` to the checkpoint's, with its prefix.

    Attributes:
        once: modules that exist once: ``token``, ``final_norm`` ...
        layer: modules of a layer, below ``stem``.
        stem: the prefix of a layer, with ``{i}`` for its number.
        parameters: parameters of a layer with a different leaf name, below ``stem``.
        head: the projection to the vocabulary.
        unread: tensors of a layer that older files hold: masks, or a formula's values.
    """

    once: Mapping[str, str]
    layer: NameMap
    stem: str
    parameters: NameMap = field(default_factory=dict)
    head: str = "lm_head"
    unread: tuple[str, ...] = ()


def fused_qkv(name: str, *, groups: int = 1, queries: int = 1) -> dict[str, Origin]:
    """Q, K and V in one projection: each of ``groups`` groups has ``queries`` parts of Q, then one of K, one of V."""
    parts = queries + 2
    return {
        "attention.query": Origin((name,), (SplitFused(0, parts, groups, queries),)),
        "attention.key": Origin((name,), (SplitFused(queries, parts, groups),)),
        "attention.value": Origin((name,), (SplitFused(queries + 1, parts, groups),)),
    }


def settings(config: Config, *, tied: bool, **overrides: Any) -> DecoderConfig:
    """A decoder with the sizes of config.json; ``tied``: default of ``tie_word_embeddings``.

    ``overrides``: flat settings (`DecoderConfig.of`), in place of those read here too.
    """
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    read = {
        "vocab": vocab,
        "hidden": hidden,
        "layers": config.size("num_hidden_layers", most=MOST_LAYERS),
        "tied": config.flag("tie_word_embeddings", tied),
    }
    if "heads" not in overrides:
        read["heads"] = config.heads(hidden)
    if "padding_id" not in overrides:
        read["padding_id"] = config.padding_id(vocab)
    return DecoderConfig.of(**read | overrides)


def plan(
    task: str,
    settings: DecoderConfig,
    encoding: Encoding,
    names: Names,
    *,
    decides: tuple[str, ...] = (),
    causal: bool = True,
) -> Plan:
    """The model for ``task`` on the meta device, and the origins of its weights; not ``causal``: without a KV cache."""
    with torch.device("meta"):
        decoder = Decoder(settings, encoding, causal=causal)
        head = LanguageModel(settings, decoder.token) if task == "text-generation" else None
        model: Definition = DecoderModel(decoder, head) if causal else HeadedDecoder(decoder, Features(decoder.width))
    here, there = "decoder.layers", f"{names.stem}."
    modules = {f"decoder.{path}": origin(stored) for path, stored in names.once.items()}
    modules |= {"head.out": origin(names.head)} | in_layers(settings.layers, here, there, names.layer)
    parameters = in_layers(settings.layers, here, there, names.parameters)
    if head is not None and settings.head.tied:
        parameters["decoder.token.weight"] = Origin((names.once["token"], names.head)).below("weight")
    unread = tuple(f"{names.stem}.{name}".format(i=i) for i in range(settings.layers) for name in names.unread)
    return Plan(model, origins_of(model, modules, parameters), unread=unread, decides=decides)


def family(
    model_type: str, build: Callable[[Config, str], Plan], *, prefix: str, roots: tuple[str, ...], **fields: Any
) -> Family:
    """A family with the heads of text generation only."""
    return Family(
        model_type=model_type,
        build=build,
        prefix=prefix,
        roots=roots,
        architectures={
            "ForCausalLM": "text-generation",
            "LMHeadModel": "text-generation",
            "ForSequenceClassification": "sequence-classification",
            "Model": "features",
        },
        tasks=("text-ranking",),
        score="score",
        other_heads={
            "lm_head.": "the language-model head",
            "embed_out.": "the language-model head",
            "score.": "a classification head",
            "classifier.": "a classification head",
            "qa_outputs.": "the question-answering head",
        },
        allowed=("is_decoder",),
        **fields,
    )
