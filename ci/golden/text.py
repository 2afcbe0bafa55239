"""Writes tests/golden for text encoders that are no heirs of BERT: ModernBERT, T5, mT5, UMT5, XLNet.

Padded tokens are zero in what is stored: in ModernBERT's local windows and in XLNet they attend to other
tokens than ours, by design, which no real token sees. Where a classifier reads its answer at a padded token
(ModernBERT's first token of a left-padded row, XLNet's last of a right-padded one) nothing is stored for that point.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import Checkpoints, points, randomise, run
from safetensors.torch import save_file

MODERNBERT = {
    "vocab_size": 29,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 17,
    "max_position_embeddings": 33,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "global_attn_every_n_layers": 2,
    "local_attention": 7,
    "global_rope_theta": 700.0,
    "local_rope_theta": 50.0,
    "reference_compile": False,
}
T5 = {
    "vocab_size": 29,
    "d_model": 20,
    "d_kv": 3,
    "d_ff": 17,
    "num_layers": 2,
    "num_heads": 5,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
XLNET = {
    "vocab_size": 29,
    "d_model": 20,
    "n_layer": 2,
    "n_head": 5,
    "d_inner": 17,
    "pad_token_id": 3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: name of the directory: the class, its configuration's class, its settings
PLAN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "modernbert-formaskedlm": ("ModernBertForMaskedLM", "ModernBertConfig", MODERNBERT),
    "modernbert-forsequenceclassification": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        MODERNBERT
        | {
            "num_hidden_layers": 3,
            "global_attn_every_n_layers": 3,
            "local_rope_theta": None,
            "local_attention": 12,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "classifier_bias": True,
            "classifier_pooling": "mean",
            "classifier_activation": "relu",
            "hidden_activation": "gelu_pytorch_tanh",
            "num_labels": 3,
        },
    ),
    "modernbert-cls": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        MODERNBERT | {"num_labels": 3, "local_attention": 4, "mlp_bias": True},
    ),
    "modernbert-forquestionanswering": (
        "ModernBertForQuestionAnswering",
        "ModernBertConfig",
        MODERNBERT | {"attention_bias": True, "classifier_bias": True, "num_labels": 2},
    ),
    "t5-encodermodel": ("T5EncoderModel", "T5Config", T5),
    "t5-fortokenclassification": (
        "T5ForTokenClassification",
        "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 14, "num_labels": 3},
    ),
    "mt5-encodermodel": ("MT5EncoderModel", "MT5Config", T5 | {"num_layers": 1, "feed_forward_proj": "gated-silu"}),
    "umt5-encodermodel": ("UMT5EncoderModel", "UMT5Config", T5 | {"feed_forward_proj": "gated-gelu"}),
    "xlnet-model": ("XLNetModel", "XLNetConfig", XLNET | {"clamp_len": 9, "ff_activation": "relu"}),
    "xlnet-forsequenceclassification": ("XLNetForSequenceClassification", "XLNetConfig", XLNET | {"num_labels": 3}),
    "xlnet-forquestionansweringsimple": (
        "XLNetForQuestionAnsweringSimple",
        "XLNetConfig",
        XLNET | {"n_layer": 1, "num_labels": 2},
    ),
}
#: those of which all points are stored; of the others the padded ones and the longest
WHOLE = ("modernbert-formaskedlm", "t5-encodermodel", "xlnet-model")
LONGEST = 33


def inputs(config, length: int, rows: list[int], side: str, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Tokens, mask and, for XLNet, types, which change somewhere in every row."""
    ids = rng.integers(5, config.vocab_size, (len(rows), length))
    mask = np.zeros_like(ids)
    for row, real in enumerate(rows):
        mask[row, length - real if side == "left" else 0 : length if side == "left" else real] = 1
    ids[mask == 0] = config.pad_token_id
    found = {"input_ids": ids, "attention_mask": mask}
    if config.model_type == "xlnet":
        kinds = rng.integers(0, 3, ids.shape)
        kinds[mask == 0] = 3
        found["token_type_ids"] = kinds
    return {name: torch.from_numpy(value) for name, value in found.items()}


def masked(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Zero at padded tokens; an output without tokens as it is."""
    if value.shape[:2] != mask.shape:
        return value
    return value * mask.reshape(*mask.shape, *[1] * (value.dim() - 2))


def check(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> None:
    """The order of the tokens changes more than that of the outputs; XLNet's types count, and one alone does not."""
    state = run(model, given)["last_hidden_state"]
    scale = state.abs().max()
    turned = {name: value.flip(1) for name, value in given.items()}
    moved = run(model, turned)["last_hidden_state"].flip(1)
    assert (moved - state).abs().max() > 0.05 * scale, "positions do not matter"
    if "token_type_ids" in given:
        absent = {name: value for name, value in given.items() if name != "token_type_ids"}
        without = run(model, absent)["last_hidden_state"]
        one = run(model, absent | {"token_type_ids": torch.ones_like(given["input_ids"])})["last_hidden_state"]
        assert (without - state).abs().max() > 0.05 * scale, "token types do not matter"
        assert (without - one).abs().max() < 1e-12 * scale, "one type alone matters"


def unread(model: torch.nn.Module, name: str, side: str, padded: bool) -> bool:
    """Whether an output is read at a padded token."""
    if not padded or name != "logits" or "SequenceClassification" not in type(model).__name__:
        return False
    if model.config.model_type == "xlnet":
        return side == "right"
    return side == "left" and model.config.classifier_pooling == "cls"


def make(target: Path, name: str, seed: int) -> None:
    """One checkpoint and what it gives."""
    rng = np.random.default_rng(seed)
    stem, configuration, settings = PLAN[name]
    config = getattr(transformers, configuration)(**settings)
    model = getattr(transformers, stem)(config).eval()
    randomise(model, rng)
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(0.75)  # gates and scores without a scale grow, and rounding with them
        if key.endswith(("relative_attention_bias.weight", "seg_embed")):
            parameter.data.mul_(5)  # so that they show beside T5's scores, which are not scaled, and XLNet's others
    model.save_pretrained(target, safe_serialization=True)
    model = type(model).from_pretrained(target).double().eval()
    tensors = {}
    for point, (length, rows, side) in points(LONGEST).items():
        given = inputs(config, length, rows, side, rng)
        if len(rows) == 1 and length == LONGEST:
            check(model, given)
        padded = point in ("right-17", "left-17")
        for key, value in run(model, given).items():
            if key == "logits" and stem.endswith("MaskedLM") and point != "left-17":
                continue
            if unread(model, key, side, padded=len(rows) > 1) or not (padded or key == "last_hidden_state"):
                continue
            if name not in WHOLE and not padded and point != f"none-{LONGEST}":
                continue
            tensors |= {f"{point}.{known}": t.to(torch.uint8) for known, t in given.items()}
            tensors[f"{point}.{key}"] = masked(value, given["attention_mask"]).float().contiguous()
    save_file(tensors, target / "expected.safetensors")
    target.joinpath("generation_config.json").unlink(missing_ok=True)


def checkpoints() -> Checkpoints:
    """All of this topic."""
    return {name: partial(make, name=name, seed=seed) for seed, name in enumerate(PLAN, start=30_100)}
