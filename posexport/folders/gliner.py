"""Folders of gliner (Zaratiana et al., arXiv:2311.08526): spans or words of a text scored by labels before it.

The names of tensors are the library's (version 0.2.29). Its models without one encoder for labels and text are refused.
"""

import msgspec
import torch
from torch import nn

from posexport.checkpoints.config import Config
from posexport.checkpoints.makers import Maker
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.folders import encoder_part
from posexport.folders.kinds import ENCODER
from posexport.models.gliner import Gliner, SpanScores, TokenScores
from posexport.nn.lstm import PackedLSTM
from posexport.sources.source import Model

_TENSORS = "token_rep_layer.bert_layer.model."
BY_TOKEN = "token_level"
_TASK = "zero-shot-token-classification"
#: span_mode -> inner channels of the projections of the ends, and behind both ends, as multiples of the model's
_SPANS = {"markerV0": (4, 4), "marker": (2, None)}
#: keys that ask for another model, each with what it is
_OTHERS = {
    "labels_encoder": "it reads labels by an encoder of their own (a bi-encoder)",
    "labels_decoder": "it writes labels by a decoder",
    "relations_layer": "it gives relations between entities",
    "decoder_config": "it reads a text in parts, by a decoder (streaming)",
    "span_encoder_config": "it has further layers between words and spans",
}
_POOLINGS = ("first", "last")
SPLITTER = "whitespace"
#: keys that are read here or by the pipeline
_READ = {
    *("model_type", "span_mode", "max_width", "hidden_size", "subtoken_pooling", "num_rnn_layers", "fuse_layers"),
    *("class_token_index", "embed_ent_token", "ent_token", "sep_token", "vocab_size", "max_len", "encoder_config"),
    *("words_splitter_type", "represent_spans", "precomputed_prompts_mode", "model_name", *_OTHERS),
}
#: keys that only training, or nothing that this model computes, depends on
_UNREAD = {
    *("name", "dropout", "fine_tune", "max_types", "max_neg_type_ratio", "token_loss_coef", "span_loss_coef"),
    *("neg_spans_ratio", "id_to_classes", "post_fusion_schema", "num_post_fusion_layers", "_attn_implementation"),
    *("lr_encoder", "lr_others", "num_steps", "warmup_ratio", "train_batch_size", "eval_every", "root_dir"),
    *("train_data", "val_data_dir", "prev_path", "size_sup", "shuffle_types", "random_drop", "save_total_limit"),
    *("log_dir", "has_rnn", "has_post_transformer", "labels_encoder_config", "labels_decoder_config", "decoder_mode"),
    *("weight_decay_encoder", "weight_decay_other", "scheduler_type", "loss_alpha", "loss_gamma", "loss_reduction"),
    *("max_grad_norm", "freeze_token_rep", "label_smoothing", "masking", "negatives", "loss_prob_margin"),
}


def make(checkpoint: Checkpoint) -> Model:
    """The definition with the checkpoint's weights.

    Raises:
        PosexportError: the folder is of another kind of model, posexport does not define its encoder, or its weights do
            not fit.
    """
    config = checkpoint.config
    encoder_part.check_task(checkpoint, "GLiNER", _TASK)
    _refuse(config)
    encoder = encoder_part.read(_encoder_config(checkpoint), _TENSORS)
    hidden, layers = config.size("hidden_size", 512), config.size("num_rnn_layers", 1, least=0)
    with torch.device("meta"):
        scores, modules = _scores(config, hidden)
        project = None if hidden == encoder.hidden else nn.Linear(encoder.hidden, hidden)
        lstm = PackedLSTM(hidden, hidden // 2, layers) if layers else None
        model = Gliner(encoder.model, scores, project=project, lstm=lstm)
    if project is not None:
        modules["project"] = "token_rep_layer.projection"
    if lstm is not None:
        modules["lstm.lstm"] = "rnn.lstm"
    unused = {"cross_fuser.": "the fusion of post_fusion_schema, which the library does not call either"}
    made = encoder.filled(model, modules, checkpoint.weights, _TASK, unused)
    return msgspec.structs.replace(made, remarks=[*_remarks(config), *made.remarks])


MAKER = Maker("huggingface", make)


def _refuse(config: Config) -> None:
    """PosexportError for models that are computed otherwise."""
    values = config.values
    for key, what in _OTHERS.items():
        if values.get(key) not in (None, ""):
            raise PosexportError(f"{config.label} says {key}: {what}; GLiNER with one encoder for both is converted")
    config.only("it averages the encoder's layers over padding too, so answers depend on the batch", fuse_layers=False)
    config.only("the model scores spans that its own scores choose", represent_spans=False)
    if values.get("precomputed_prompts_mode"):
        raise PosexportError(f"{config.label} says precomputed_prompts_mode: the model has no labels before the text")
    if (pooling := config.text("subtoken_pooling", "first")) not in _POOLINGS:
        raise PosexportError(
            f"{config.label} says subtoken_pooling = {pooling!r:.60}; a word is one of its tokens here: "
            f"{' or '.join(_POOLINGS)}"
        )


def _scores(config: Config, hidden: int) -> tuple[SpanScores | TokenScores, dict[str, str]]:
    """The scores, and their modules by the file's."""
    mode = config.text("span_mode", "markerV0")
    if mode == BY_TOKEN:
        names = {"word": "proj_token", "label": "proj_label", "joined": "out_mlp.0", "out": "out_mlp.3"}
        return TokenScores(hidden), {f"scores.{here}": f"scorer.{there}" for here, there in names.items()}
    if mode not in _SPANS:
        raise PosexportError(
            f"{config.label} says span_mode = {mode!r:.60}; converted are {', '.join(_SPANS)} and {BY_TOKEN}"
        )
    ends, joined = _SPANS[mode]
    scores = SpanScores(
        hidden, config.size("max_width", 12), ends=ends * hidden, inner=None if joined is None else joined * hidden
    )
    layer = "span_rep_layer.span_rep_layer"
    modules = {"label.0": "prompt_rep_layer.0", "label.2": "prompt_rep_layer.3"}
    for end in ("start", "end"):
        modules |= {f"{end}.0": f"{layer}.project_{end}.0", f"{end}.2": f"{layer}.project_{end}.3"}
    out = {"joined": f"{layer}.out_project"}
    modules |= out if joined is None else {"joined": f"{layer}.out_project.0", "out": f"{layer}.out_project.3"}
    return scores, {f"scores.{here}": there for here, there in modules.items()}


def _encoder_config(checkpoint: Checkpoint) -> Config:
    """The encoder's configuration: in the file, or in a folder beside it, as the library reads it from the Hub."""
    config = checkpoint.config
    if config.values.get(encoder_part.KEY) is not None:
        return config.nested(encoder_part.KEY)
    name = config.text("model_name", "microsoft/deberta-v3-small")
    if checkpoint.files.find(f"{ENCODER}config.json") is None:
        raise PosexportError(
            f"{config.label} has no {encoder_part.KEY}, which the library reads from the Hub: type hf download {name} "
            f"--include '*.json' '*.model' '*.txt' --local-dir {checkpoint.files.path}/encoder, and convert again"
        )
    encoder = Config(checkpoint.files, f"{ENCODER}config.json")
    encoder.outer = config.text("model_type")
    rows = config.size("vocab_size", -1, least=-1)
    if rows > 0:
        # the library has added its markers to that vocabulary
        encoder.values["vocab_size"] = rows
    return encoder


def _remarks(config: Config) -> list[str]:
    """Keys that nothing here depends on as far as posexport knows, and a splitter of words that the pipeline lacks."""
    remarks = encoder_part.unread(config, _READ | _UNREAD)
    if (splitter := config.text("words_splitter_type", SPLITTER)) != SPLITTER:
        remarks.append(
            f"{config.label} says words_splitter_type = {splitter!r:.60}, and the pipeline splits by {SPLITTER} alone: "
            "prepare the inputs with gliner, and give them to session.run"
        )
    return remarks
