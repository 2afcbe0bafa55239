"""From a family and its config.json to a definition without weights, and where each weight comes from."""

import torch

from posexport.encodings.absolute import Absolute
from posexport.encodings.encoding import Encoding
from posexport.encodings.relative_key import RelativeKey
from posexport.encodings.relative_key_query import RelativeKeyQuery
from posexport.errors import PosexportError
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.models.layer import EncoderLayer
from posexport.nn.activations import activation
from posexport.nn.heads import (
    FillMask,
    Head,
    SentenceEmbedding,
    plain_head,
)
from posexport.nn.position_ids import FairseqPositionIds, SequentialPositionIds
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.causal import Given
from posexport.sources.huggingface.families.decoder_bias import biases
from posexport.sources.huggingface.families.family import Family
from posexport.sources.huggingface.plan import Origin, Plan, origins_of
from posexport.sources.huggingface.sentence_transformers import Pooling

POSITION_TYPES = ("absolute", "relative_key", "relative_key_query")


def plan(family: Family, config: Config, task: str, pooling: Pooling | None) -> Plan:
    """The definition that a config.json describes; PosexportError where it describes none."""
    settings = encoder_config(family, config)
    with torch.device("meta"):
        if family.encoding is not None:
            encoding = family.encoding(config, settings)
        else:
            encoding = _encoding(family, config, settings, config.text("position_embedding_type", "absolute"))
        position_ids = FairseqPositionIds(settings.padding_id) if family.after_padding else SequentialPositionIds()
        encoder = Encoder(settings, encoding, position_ids)
        for layer in encoder.groups:
            assert isinstance(layer, EncoderLayer)
            for ours, attentions in family.shared(config).items():
                setattr(layer.attention.encoding, ours, getattr(layer.attention, attentions))
        head = _head(family, config, settings, task, pooling)
        model = EncoderModel(encoder, head)
    tied = isinstance(head, FillMask) and config.flag("tie_word_embeddings", True)
    if tied:
        assert isinstance(head, FillMask)
        head.decoder.weight = encoder.embeddings.token.weight
    origins = _origins(family, config, settings, model, task, tied)
    longest = config.size("max_position_embeddings") if family.fixed_length else None
    unread: tuple[str, ...] = ()
    if isinstance(head, FillMask):
        unread = biases(config, family.fill_mask.bias, family.fill_mask.decoder, tied=tied)[1]
    decides = () if family.encoding else ("position_embedding_type",)
    return Plan(model, origins, longest, family.constants(config, settings), unread=unread, decides=decides)


def encoder_config(family: Family, config: Config) -> EncoderConfig:
    """Sizes and arrangement; sizes must be said, the rest has transformers' defaults."""
    spelled = Given(config, family.spellings)
    hidden = spelled.size("hidden_size")
    heads = spelled.heads(hidden)
    vocab = config.size("vocab_size")
    if config.values.get("pad_token_id", ...) is None and not family.after_padding:
        padding = family.padding_id  # null: there it only says which row was not trained
    else:
        padding = config.size("pad_token_id", family.padding_id, least=0, most=vocab - 1)
    key = spelled.key("hidden_act")
    stated = config.text(key, family.default_activation)
    name = family.activation or stated
    if name != stated:
        config.remark(
            f"says {key} = {stated!r:.60}, which transformers ignores in {family.model_type}: {name} is computed"
        )
    try:
        activation(name)
    except PosexportError as err:
        raise PosexportError(f"{config.label}: {err}") from err
    given = {**family.arrangement, **family.options(config)}
    if "types" not in given:
        given["types"] = config.size("type_vocab_size", 2)
    if "eps" not in given:
        given["eps"] = config.number("layer_norm_eps", family.default_eps)
    return EncoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=heads,
        layers=spelled.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=spelled.size("intermediate_size"),
        activation=name,
        padding_id=padding,
        **given,
    )


def _encoding(family: Family, config: Config, settings: EncoderConfig, kind: str) -> Encoding:
    longest = config.size("max_position_embeddings")
    if kind == "absolute":
        if family.after_padding and longest <= settings.padding_id + 1:
            raise PosexportError(
                f"{config.label} says max_position_embeddings = {longest}; positions start at pad_token_id + 1 = "
                f"{settings.padding_id + 1}, so it must be greater"
            )
        return Absolute(max_positions=longest, hidden=settings.embedding.width or settings.hidden)
    if kind == "relative_key":
        return RelativeKey(head_size=settings.head_size, max_positions=longest)
    if kind == "relative_key_query":
        return RelativeKeyQuery(head_size=settings.head_size, max_positions=longest)
    raise PosexportError(
        f"{config.label} says position_embedding_type = {kind!r:.60}; known: {', '.join(POSITION_TYPES)}"
    )


def _head(family: Family, config: Config, settings: EncoderConfig, task: str, pooling: Pooling | None) -> Head:
    hidden = settings.hidden
    if task == "sentence-embedding":
        assert pooling is not None
        pooling.check_width(hidden)
        return SentenceEmbedding(hidden, pooling.mode, pooling.normalise)
    if task == "fill-mask":
        name = family.fill_mask.activation or settings.layer.feedforward.activation
        return FillMask(hidden, settings.embedding.width or hidden, settings.vocab, name, settings.layer.norm.eps)
    return plain_head(
        task, hidden, config.labels(), family.classifier.activation or settings.layer.feedforward.activation
    )


def _head_names(family: Family, task: str) -> dict[str, str]:
    if task == "fill-mask":
        names = family.fill_mask
        return {"dense": names.dense, "norm": names.norm, "decoder": names.decoder}
    if task == "sequence-classification":
        dense = family.classifier.dense.format(prefix=family.prefix)
        return {"dense": dense, "out": family.classifier.out}
    return {"out": "classifier" if task == "token-classification" else "qa_outputs"}


def _origins(
    family: Family, config: Config, settings: EncoderConfig, model: EncoderModel, task: str, tied: bool
) -> dict[str, Origin]:
    stems = {f"encoder.{ours}": f"{family.prefix}.{theirs}" for ours, theirs in family.encoder.items()}
    for group in range(len(model.encoder.groups)):
        for ours, theirs in family.layer.items():
            stems[f"encoder.groups.{group}.{ours}"] = f"{family.prefix}.{theirs.format(i=group)}"
    stems |= {f"head.{ours}": theirs for ours, theirs in _head_names(family, task).items()}
    special: dict[str, Origin] = {}
    for group in range(len(model.encoder.groups)):
        below = f"encoder.groups.{group}."
        for ours, fused in family.fused.items():
            stored = f"{family.prefix}.{fused.name.format(i=group)}"
            special[below + ours] = Origin((stored,), part=(fused.part, settings.heads))
        for ours, theirs in family.renamed.items():
            special[below + ours] = Origin((f"{family.prefix}.{theirs.format(i=group)}",))
        special |= {below + ours: Origin(()) for ours in family.zeros}
    found = origins_of(model, stems, special)
    if task == "fill-mask":
        names = family.fill_mask
        found["head.decoder.bias"] = Origin(biases(config, names.bias, names.decoder, tied=tied)[0])
    if tied:
        token = found["encoder.embeddings.token.weight"]
        found["encoder.embeddings.token.weight"] = Origin((*token.names, f"{family.fill_mask.decoder}.weight"))
    if not family.scaled:
        for name in [name for name in found if name.endswith("attention.encoding.table")]:
            # the definition scales these scores with the rest, so that the table takes the scale's inverse
            found[name] = Origin(found[name].names, factor=settings.head_size**0.5)
    if family.task_table is not None and config.flag("use_task_id", False):
        shape = [config.size("task_type_vocab_size", 3), settings.embedding.width or settings.hidden]
        name = "encoder.embeddings.token_type.weight"
        found[name] = Origin(found[name].names, row=(f"{family.prefix}.{family.task_table}.weight", shape))
    return found
