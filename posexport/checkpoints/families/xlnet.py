"""XLNet: Transformer-XL's relative positions in both directions, and a term for tokens of the same segment.

``token_type_ids`` only say which tokens are of one segment; all of one type give what transformers gives without them.
A padded query attends to itself too in transformers, and to real tokens only here: rows of padding differ, which no
real token sees. Not read: ``attn_type`` ``uni``, ``bi_data``, memories, permutations, the language-model head.
"""

import torch

from posexport.checkpoints.config import MOST_LAYERS, Config
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.mapping import Origin, Plan, Reshape, Transpose, in_layers, origin, origins_of
from posexport.encodings.transformer_xl import TransformerXL
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.models.xlnet import LastTokenClassification, XLNet
from posexport.nn.heads import Features, Head, QuestionAnswering, SequenceClassification, TokenClassification


def _build(config: Config, task: str) -> Plan:
    settings = _settings(config)
    clip = config.size("clamp_len", -1, least=-1)
    with torch.device("meta"):
        encoding = TransformerXL(
            hidden=settings.hidden,
            heads=settings.heads,
            head_size=settings.head_size,
            clip=clip if clip > 0 else None,
        )
        model = XLNet(settings, encoding, _head(config, settings, task))
    layer, parameters = _layer(settings)
    out = {"sequence-classification": "logits_proj", "token-classification": "classifier"}.get(task, "qa_outputs")
    once = {"token": "transformer.word_embedding", "head.dense": "sequence_summary.summary", "head.out": out}
    modules = {path: origin(stored) for path, stored in once.items()}
    modules |= in_layers(settings.layers, "layers", "transformer.layer.{i}.", layer)
    return Plan(
        model, origins_of(model, modules, in_layers(settings.layers, "layers", "transformer.layer.{i}.", parameters))
    )


def _settings(config: Config) -> EncoderConfig:
    if (kind := config.text("attn_type", "bi")) != "bi":
        raise PosexportError(
            f"{config.label} says attn_type = {kind!r:.60}; only bi, where tokens attend in both directions, is read"
        )
    if config.flag("bi_data", False):
        raise PosexportError(
            f"{config.label} sets bi_data: half of every batch is read backwards then, which is for pre-training; "
            f"set it to false to convert the model for use"
        )
    hidden, heads = config.size("d_model"), config.size("n_head")
    if hidden % heads or hidden % 2:
        raise PosexportError(
            f"{config.label} says d_model = {hidden}, n_head = {heads}; the size must be even and a multiple of the "
            f"heads"
        )
    if (size := config.size("d_head", hidden // heads)) * heads != hidden:
        raise PosexportError(f"{config.label} says d_head = {size}; it must be d_model / n_head = {hidden // heads}")
    vocab = config.size("vocab_size")
    return EncoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=heads,
        layers=config.size("n_layer", most=MOST_LAYERS),
        feedforward=config.size("d_inner"),
        activation=config.activation("ff_activation", "gelu"),
        attention_bias=False,
        eps=config.number("layer_norm_eps", 1e-12),
        padding_id=config.size("pad_token_id", 5, least=0, most=vocab - 1),
    )


def _head(config: Config, settings: EncoderConfig, task: str) -> Head:
    hidden = settings.hidden
    if task == "features":
        return Features(hidden)
    if task == "token-classification":
        return TokenClassification(hidden, config.labels())
    if task == "question-answering":
        return QuestionAnswering(hidden)
    for key, needed in (("summary_use_proj", True), ("summary_proj_to_labels", False)):
        if config.flag(key, needed) is not needed:
            raise PosexportError(
                f"{config.label} says {key} = {str(not needed).lower()}; only a summary through a linear projection of "
                f"the model's size is read, it must be {str(needed).lower()}"
            )
    name = config.activation("summary_activation", "tanh")
    kind = config.text("summary_type", "last")
    if kind == "last":
        return LastTokenClassification(hidden, config.labels(), name)
    if kind == "first":
        return SequenceClassification(hidden, config.labels(), name)
    raise PosexportError(f"{config.label} says summary_type = {kind!r:.60}; it must be last or first")


def _layer(settings: EncoderConfig) -> tuple[dict[str, str], dict[str, Origin]]:
    """The modules of a layer, and its parameters with a different leaf name."""
    # all projections are stored as [model size, heads, head size], which is how only the last one is used
    stored = Reshape((settings.hidden, settings.heads, settings.head_size))
    projections = {"query": "q", "key": "k", "value": "v", "encoding.project": "r"}
    parameters = {
        f"attention.{projection}.weight": Origin((f"rel_attn.{name}",), (stored, Transpose()))
        for projection, name in projections.items()
    }
    parameters["attention.output.weight"] = Origin(("rel_attn.o",), (stored,))
    biases = {"encoding.key_bias": "r_w_bias", "encoding.query_bias": "r_r_bias", "segment_bias": "r_s_bias"}
    for parameter, name in {**biases, "segments": "seg_embed"}.items():
        parameters[f"attention.{parameter}"] = Origin((f"rel_attn.{name}",))
    modules = {
        "attention_residual.norm": "rel_attn.layer_norm",
        "feedforward.inner": "ff.layer_1",
        "feedforward.outer": "ff.layer_2",
        "feedforward_residual.norm": "ff.layer_norm",
    }
    return modules, parameters


XLNET = Family(
    model_type="xlnet",
    build=_build,
    prefix="transformer",
    roots=("word_embedding.", "mask_emb", "layer."),
    architectures={
        "ForSequenceClassification": "sequence-classification",
        "ForTokenClassification": "token-classification",
        "ForQuestionAnsweringSimple": "question-answering",
        "Model": "features",
    },
    other_heads={
        "lm_loss.": "the language-model head",
        "sequence_summary.": "a classification head",
        "logits_proj.": "a classification head",
        "classifier.": "a classification head",
        "qa_outputs.": "the question-answering head",
    },
    # embedding of tokens to predict in two-stream attention, not used here
    beside={"mask_emb": None},
)
