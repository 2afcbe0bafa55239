"""Folders of gliclass (Stepanov et al., arXiv:2508.07662): a text is scored by labels beside it.

The names of tensors are the library's (version 0.1.21). Architectures without one encoder for both
are refused.
"""

import msgspec
import torch
from torch import nn

from posexport.checkpoints.config import Config
from posexport.checkpoints.makers import Maker
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.folders import encoder_part
from posexport.models.gliclass import DotScores, Gliclass, JoinedScores, Label, Projector, WeightedScores
from posexport.sources.source import Model

ENCODER = "model.encoder_model."
_HEAD = "model"
_TASK = "zero-shot-classification"
#: keys with the only value that is converted, and what another one is
_ONLY: dict[str, tuple[object, str]] = {
    "architecture_type": ("uni-encoder", "it does not read labels and text by one encoder"),
    "use_lstm": (False, "an LSTM over all tokens is not converted"),
    "squeeze_layers": (False, "it averages the encoder's layers over padding too, so answers depend on the batch"),
    "encoder_layer_id": (-1, "the last layer is read"),
    "use_segment_embeddings": (False, "embeddings of segments are not converted"),
    "use_calibrator": (False, "calibrated scores are not converted"),
    "multimodal": (False, "images and sounds are not converted"),
}
_POOLINGS = ("first", "avg")
_SCORES = ("simple", "weighted-dot", "mlp")
#: keys that are read here or by the pipeline
_READ = {
    *("model_type", "encoder_config", "hidden_size", "projector_hidden_act", "vocab_size", "scorer_type"),
    *("scorer_mlp_hidden_size", "pooling_strategy", "class_token_pooling", "normalize_features", "prompt_first"),
    *("extract_text_features", "embed_class_token", "class_token_index", "text_token_index", "pad_token_id", *_ONLY),
}
#: keys that only training, refused architectures, or nothing that this model computes depends on
_UNREAD = {
    *("example_token_index", "ignore_index", "problem_type", "max_num_classes", "initializer_range", "dropout"),
    *("focal_loss_alpha", "focal_loss_gamma", "focal_loss_reduction", "logit_scale_init_value", "max_labels_alloc"),
    *("contrastive_loss_coef", "layer_wise", "encoder_model_name", "encoder_model", "label_model_name"),
    *("label_model_config", "freeze_media_encoders", "use_embedding_projection", "shuffle_labels", "scorer_num_heads"),
    *("scorer_attn_dropout", "scorer_encoder_num_layers", "scorer_full_sequence"),
    *(f"calibrator_{name}" for name in ("hidden_size", "beta_max", "dropout", "use_bias")),
    *(f"recurrent_{name}" for name in ("steps", "min_steps", "inference", "inference_max_steps", "halt_threshold")),
    *(f"recurrent_{name}" for name in ("improvement_coef", "improvement_margin", "bptt_steps", "read_text")),
    *(f"recurrent_confidence_{name}" for name in ("coef", "mode", "margin")),
}


def make(checkpoint: Checkpoint) -> Model:
    """The definition with the checkpoint's weights.

    Raises:
        PosexportError: the folder is of another architecture, posexport does not define its encoder, or its weights do
            not fit.
    """
    config = checkpoint.config
    encoder_part.check_task(checkpoint, "GLiClass", _TASK)
    if checkpoint.adapter is not None:
        raise PosexportError(f"{config.label}: adapters of GLiClass are not merged; give the merged checkpoint")
    for key, (value, why) in _ONLY.items():
        config.only(why, **{key: value})
    pooling = _choice(config, "pooling_strategy", _POOLINGS)
    of_label = _choice(config, "class_token_pooling", ("first", "average"))
    nested = config.nested(encoder_part.KEY)
    if (rows := config.size_or_none("vocab_size")) is not None:
        nested.values["vocab_size"] = rows
    encoder = encoder_part.read(nested, ENCODER)
    inner, act = config.size_or("hidden_size", encoder.hidden), config.activation("projector_hidden_act", "gelu")
    label: Label = "token" if of_label == "first" else "mean"
    if label == "mean" and not config.flag("embed_class_token", True):
        label = "mean behind the marker"
    scaled = config.flag("normalize_features", False)
    with torch.device("meta"):
        scores, modules = _scores(config, encoder.hidden, inner)
        model = Gliclass(
            encoder.model,
            scores,
            lambda: Projector(encoder.hidden, inner, act),
            label=label,
            mean=pooling == "avg",
            only_text=config.flag("extract_text_features", False),
            scale=scaled,
        )
    for here, there in (("of_text", "text_projector"), ("of_labels", "classes_projector")):
        modules |= {f"{here}.first": f"{_HEAD}.{there}.linear_1", f"{here}.last": f"{_HEAD}.{there}.linear_2"}
    unused = {} if scaled else {f"{_HEAD}.logit_scale": "the scale of vectors of norm 1"}
    made = encoder.filled(model, {**modules, "": _HEAD}, checkpoint.weights, _TASK, unused)
    return msgspec.structs.replace(made, remarks=[*encoder_part.unread(config, _READ | _UNREAD), *made.remarks])


MAKER = Maker("huggingface", make)


def _choice(config: Config, key: str, known: tuple[str, ...]) -> str:
    """The value of a key, the first of ``known`` by default."""
    if (value := config.text(key, known[0])) not in known:
        raise PosexportError(f"{config.label} says {key} = {value!r:.60}; converted are {' and '.join(known)}")
    return value


def _scores(config: Config, size: int, inner: int) -> tuple[nn.Module, dict[str, str]]:
    """The score, and its modules by the file's."""
    kind, scorer = _choice(config, "scorer_type", _SCORES), f"{_HEAD}.scorer"
    if kind == "simple":
        return DotScores(), {}
    if size != inner:
        raise PosexportError(
            f"{config.label} says hidden_size = {inner}; with scorer_type = {kind!r} it must be the encoder's {size}"
        )
    if kind == "mlp":
        names = {"first": "mlp.0", "second": "mlp.2", "out": "mlp.4"}
        # the library does not hand scorer_mlp_hidden_size on to this score
        return JoinedScores(size, 256), {f"scores.{here}": f"{scorer}.{there}" for here, there in names.items()}
    names = {"word": "proj_text", "label": "proj_label", "joined": "out_mlp.0", "out": "out_mlp.3"}
    return WeightedScores(size), {f"scores.pair.{here}": f"{scorer}.{there}" for here, there in names.items()}
