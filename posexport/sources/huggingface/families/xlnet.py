"""XLNet: Transformer-XL's relative positions in both directions, and a term for tokens of the same segment.

``token_type_ids`` only say which tokens are of one segment; all of one type give what transformers gives without them.
A padded query attends to itself too in transformers, and to real tokens only here: rows of padding differ, which no
real token sees. Not read: ``attn_type`` ``uni``, ``bi_data``, memories, permutations, the language-model head.
"""

import torch

from posexport.encodings.transformer_xl import TransformerXL
from posexport.errors import PosexportError
from posexport.models.encoder import EncoderConfig
from posexport.models.xlnet import LastTokenClassification, XLNet
from posexport.nn.heads import Features, Head, QuestionAnswering, SequenceClassification, TokenClassification
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.family import OwnFamily
from posexport.sources.huggingface.plan import Origin, Plan


def _plan(config: Config, task: str) -> Plan:
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
    return Plan(model, {name: _origin(name, settings, task) for name, _ in model.named_parameters()})


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
                f"{config.label} says {key} = {str(not needed).lower()}; only a summary through a linear map of the "
                f"model's size is read, it must be {str(needed).lower()}"
            )
    name = config.activation("summary_activation", "tanh")
    kind = config.text("summary_type", "last")
    if kind == "last":
        return LastTokenClassification(hidden, config.labels(), name)
    if kind == "first":
        return SequenceClassification(hidden, config.labels(), name)
    raise PosexportError(f"{config.label} says summary_type = {kind!r:.60}; it must be last or first")


_LAYER = {
    "attention.query.weight": "rel_attn.q",
    "attention.key.weight": "rel_attn.k",
    "attention.value.weight": "rel_attn.v",
    "attention.output.weight": "rel_attn.o",
    "attention.encoding.project.weight": "rel_attn.r",
    "attention.encoding.key_bias": "rel_attn.r_w_bias",
    "attention.encoding.query_bias": "rel_attn.r_r_bias",
    "attention.segments": "rel_attn.seg_embed",
    "attention.segment_bias": "rel_attn.r_s_bias",
}
_MODULES = {
    "attention_residual.norm": "rel_attn.layer_norm",
    "feedforward.inner": "ff.layer_1",
    "feedforward.outer": "ff.layer_2",
    "feedforward_residual.norm": "ff.layer_norm",
}


def _origin(parameter: str, settings: EncoderConfig, task: str) -> Origin:
    module, _, leaf = parameter.rpartition(".")
    if parameter == "token.weight":
        return Origin(("transformer.word_embedding.weight",))
    if module == "head.dense":
        return Origin((f"sequence_summary.summary.{leaf}",))
    if module == "head.out":
        head = {"sequence-classification": "logits_proj", "token-classification": "classifier"}
        return Origin((f"{head.get(task, 'qa_outputs')}.{leaf}",))
    _, index, part = parameter.split(".", 2)
    stem = f"transformer.layer.{index}"
    if part not in _LAYER:
        return Origin((f"{stem}.{_MODULES[part.rpartition('.')[0]]}.{leaf}",))
    if not part.endswith(".weight"):
        return Origin((f"{stem}.{_LAYER[part]}",))
    # all maps stand as [model size, heads, head size], which is how only the last one is used
    shape = (settings.hidden, settings.heads, settings.head_size)
    return Origin((f"{stem}.{_LAYER[part]}",), shape=shape, transposed=part != "attention.output.weight")


XLNET = OwnFamily(
    model_type="xlnet",
    plan=_plan,
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
    # stands for tokens to predict, which there are none of
    beside={"mask_emb": None},
)
