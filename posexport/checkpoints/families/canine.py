"""Canine: characters by hashes, one layer within blocks of them, deep layers on every fourth, and back.

The longest input is the smaller of ``num_hash_buckets`` (rows of the table of positions) and
``max_position_embeddings``; the shortest is ``downsampling_rate``. Not read: relative positions
(``position_embedding_type``), which no released checkpoint has.
"""

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.bert import POST_NORM, SUBLAYERS
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Origin, Plan, in_layers, origin, origins_of
from posexport.encodings.absolute import Absolute
from posexport.errors import PosexportError
from posexport.models.canine import PRIMES, UNICODE, Canine, CanineConfig, CanineModel
from posexport.nn.heads import plain_head

_ONCE = {
    "embeddings.token_type": "char_embeddings.token_type_embeddings",
    "embeddings.encoding": "char_embeddings.char_position_embeddings",
    "embeddings.norm": "char_embeddings.LayerNorm",
    "down.conv": "chars_to_molecules.conv",
    "down.norm": "chars_to_molecules.LayerNorm",
    "up.conv": "projection.conv",
    "up.norm": "projection.LayerNorm",
}
#: of BERT, below a layer
_LAYER = {path: stored.removeprefix("encoder.layer.{i}.") for path, stored in (SUBLAYERS | POST_NORM).items()}
_HEADS = {
    "sequence-classification": {"dense": "canine.pooler.dense", "out": "classifier"},
    "token-classification": {"out": "classifier"},
    "question-answering": {"out": "qa_outputs"},
}


def _build(config: Config, task: str) -> Plan:
    settings = _settings(config)
    longest = config.size("max_position_embeddings", 16384)
    if min(longest, settings.buckets) < settings.rate:
        raise PosexportError(
            f"{config.label} says max_position_embeddings = {longest}, num_hash_buckets = {settings.buckets}; both "
            f"must be at least downsampling_rate = {settings.rate}, the shortest input"
        )
    with torch.device("meta"):
        encoder = Canine(settings, Absolute(max_positions=settings.buckets, hidden=settings.hidden))
        model = CanineModel(
            encoder, plain_head(task, settings.hidden, config.labels()), pooled=task == "sequence-classification"
        )
    return Plan(model, _origins(model, settings, task), longest)


def _settings(config: Config) -> CanineConfig:
    if (kind := config.text("position_embedding_type", "absolute")) != "absolute":
        raise PosexportError(
            f"{config.label} says position_embedding_type = {kind!r:.60}; of canine only absolute is read"
        )
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    hashes = config.size("num_hash_functions", 8, most=len(PRIMES))
    if hidden % heads or hidden % hashes:
        raise PosexportError(
            f"{config.label} says hidden_size = {hidden}, num_attention_heads = {heads}, num_hash_functions = "
            f"{hashes}; heads and hash functions must divide the size"
        )
    # null pads with id 0
    unsaid = config.values.get("pad_token_id") is None
    return CanineConfig.of(
        hidden=hidden,
        heads=heads,
        layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=config.size("intermediate_size"),
        types=config.size("type_vocab_size", 16),
        activation=config.activation("hidden_act", "gelu"),
        eps=config.number("layer_norm_eps", 1e-12),
        padding_id=0 if unsaid else config.size("pad_token_id", least=0, most=UNICODE - 1),
        hashes=hashes,
        buckets=config.size("num_hash_buckets", 16384),
        stride=config.size("local_transformer_stride", 128),
        rate=config.size("downsampling_rate", 4),
        kernel=config.size("upsampling_kernel_size", 4),
    )


def _origins(model: CanineModel, settings: CanineConfig, task: str) -> dict[str, Origin]:
    modules = {f"encoder.{path}": origin(f"canine.{stored}") for path, stored in _ONCE.items()}
    modules |= {
        f"encoder.embeddings.hashed.{i}": origin(f"canine.char_embeddings.HashBucketCodepointEmbedder_{i}")
        for i in range(settings.hashes)
    }
    for stack, encoder in (("first", "initial_char_encoder"), ("last", "final_char_encoder")):
        modules |= {
            f"encoder.{stack}.{name}": origin(f"canine.{encoder}.layer.0.{stored}") for name, stored in _LAYER.items()
        }
    modules |= in_layers(settings.layers, "encoder.deep", "canine.encoder.layer.{i}.", _LAYER)
    modules |= {f"head.{path}": origin(stored) for path, stored in _HEADS.get(task, {}).items()}
    return origins_of(model, modules)


CANINE = Family(
    model_type="canine",
    build=_build,
    prefix="canine",
    roots=(
        "char_embeddings.",
        "initial_char_encoder.",
        "chars_to_molecules.",
        "encoder.",
        "projection.",
        "final_char_encoder.",
        "pooler.",
    ),
    architectures={
        "ForSequenceClassification": "sequence-classification",
        "ForTokenClassification": "token-classification",
        "ForQuestionAnswering": "question-answering",
        "Model": "features",
    },
    other_heads={"classifier.": "a classification head", "qa_outputs.": "the question-answering head"},
    beside={"char_embeddings.position_ids": None},
)
