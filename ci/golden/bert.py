"""Checkpoints of BERT and its heirs: every position type, and the families with positions of their own.

Two attention implementations of transformers must agree on each.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import FIVE, Checkpoints, points, randomise, run
from safetensors.torch import save_file

TYPES = ("absolute", "relative_key", "relative_key_query")
SIZES = {
    "vocab_size": 43,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 29,
    "max_position_embeddings": 33,
}
SMALLER = {"vocab_size": 29, "intermediate_size": 17}
CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "electra": "Electra",
    "albert": "Albert",
    "megatron-bert": "MegatronBert",
    "ernie": "Ernie",
    "roberta-prelayernorm": "RobertaPreLayerNorm",
}
#: families with positions of their own
OWN = {
    "roformer": "RoFormer",
    "nezha": "Nezha",
    "mpnet": "MPNet",
    "deberta": "Deberta",
    "deberta-v2": "DebertaV2",
    "esm": "Esm",
    "distilbert": "DistilBert",
}
#: what a family calls the sizes where it has names of its own
SPELLED = {
    "distilbert": {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
    }
}
NUMBERED_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "mpnet")
#: what differs from the sizes, so that each family's own options take part
OPTIONS = {
    "roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "xlm-roberta": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "camembert": {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "electra": {"embedding_size": 12},
    "albert": {"embedding_size": 12},
    "deberta": {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"},
    "deberta-v2": {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": "p2c|c2p",
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    "esm": {
        "pad_token_id": 1,
        "mask_token_id": 7,
        "position_embedding_type": "rotary",
        "token_dropout": True,
        "emb_layer_norm_before": False,
        "layer_norm_eps": 1e-5,
    },
    "nezha": {"max_relative_position": 7},
    "ernie": {"type_vocab_size": 4, "hidden_act": "relu", "use_task_id": True},
}
ONLY = {
    ("albert", "relative_key"): {"num_hidden_groups": 2},
    ("ernie", "relative_key_query"): {"use_task_id": False},
    ("electra", "relative_key_query"): {"embedding_size": 20},
    ("roberta-prelayernorm", "relative_key"): {"hidden_act": "gelu_new"},
    ("roformer", "ForSequenceClassification"): {"embedding_size": 12, "hidden_act": "relu"},
    ("deberta", "ForSequenceClassification"): {"max_relative_positions": 9, "type_vocab_size": 2},
    ("deberta-v2", "ForSequenceClassification"): {
        "position_buckets": -1,
        "max_relative_positions": 12,
        "norm_rel_ebd": "none",
        "share_att_key": False,
        "type_vocab_size": 2,
    },
    ("esm", "ForTokenClassification"): {"token_dropout": False, "emb_layer_norm_before": True},
    ("distilbert", "ForTokenClassification"): {"sinusoidal_pos_embds": True},
    ("distilbert", "ForSequenceClassification"): {"activation": "gelu_new"},
    ("distilbert", "Model"): {"activation": "relu"},
}
#: the class that is saved, by position type; the rest of the tasks come from `EXTRAS`
SAVED = {"absolute": "ForMaskedLM", "relative_key": "Model", "relative_key_query": "ForSequenceClassification"}
EXTRAS = [
    (family, kind, task)
    for family in ("bert", "roberta", "electra", "albert")
    for kind, task in (("relative_key", "ForTokenClassification"), ("absolute", "ForQuestionAnswering"))
]

EXTRAS_OWN = [
    ("roformer", "ForMaskedLM"),
    ("roformer", "ForSequenceClassification"),
    ("nezha", "ForMaskedLM"),
    ("mpnet", "ForMaskedLM"),
    ("deberta", "ForMaskedLM"),
    ("deberta", "ForSequenceClassification"),
    ("deberta-v2", "ForMaskedLM"),
    ("deberta-v2", "ForSequenceClassification"),
    ("esm", "ForMaskedLM"),
    ("esm", "ForTokenClassification"),
    ("distilbert", "ForMaskedLM"),
    ("distilbert", "ForSequenceClassification"),
    ("distilbert", "ForTokenClassification"),
    ("distilbert", "ForQuestionAnswering"),
    ("distilbert", "Model"),
    ("nezha", "Model"),
    ("mpnet", "Model"),
    ("esm", "Model"),
]


def inputs(config, length: int, rows: list[int], side: str, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    ids = rng.integers(5, config.vocab_size, (len(rows), length))
    types = getattr(config, "type_vocab_size", 1)
    kinds = rng.integers(0, max(types, 1), ids.shape)
    mask = np.zeros_like(ids)
    for row, real in enumerate(rows):
        mask[row, length - real if side == "left" else 0 : length if side == "left" else real] = 1
    ids[mask == 0] = config.pad_token_id
    kinds[mask == 0] = 0
    if len(rows) == 1 and length == 17:
        ids[0, 6] = config.pad_token_id  # a padding token that is not masked
    if config.model_type == "esm" and not mask.all():
        # 4.57.6 divides the mask tokens by the padded length, ESM itself by the real one: no such tokens there
        ids[ids == config.mask_token_id] = config.mask_token_id + 1
    found = {"input_ids": ids, "attention_mask": mask}
    if types > 1:
        found["token_type_ids"] = kinds
    return {name: torch.from_numpy(value) for name, value in found.items()}


def check(model: torch.nn.Module, eager: torch.nn.Module, given: dict[str, torch.Tensor]) -> None:
    """Both attention implementations agree, and the order of the tokens changes more than the order of the outputs."""
    state = run(model, given)["last_hidden_state"]
    scale = state.abs().max()
    rounding = 1e-6 if model.config.model_type == "esm" else 1e-12  # its eager attention takes a float32 softmax
    assert (run(eager, given)["last_hidden_state"] - state).abs().max() < rounding * scale
    turned = {name: value.flip(1) for name, value in given.items()}
    moved = run(model, turned)["last_hidden_state"].flip(1)
    assert (moved - state).abs().max() > 0.05 * scale, "positions do not matter"


def pooled(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``pooler_output`` of a model without a head, where its family has a pooler."""
    if model.base_model is not model:
        return {}
    with torch.inference_mode():
        found = getattr(model(**given), "pooler_output", None)
    return {} if found is None else {"pooler_output": found}


def make(
    target: Path,
    family: str,
    kind: str | None,
    saved: str,
    seed: int,
    *,
    extra: bool,
    over: dict[str, Any] | None = None,
) -> None:
    rng = np.random.default_rng(seed)
    settings = (
        SIZES | (SMALLER if family in OWN else {}) | OPTIONS.get(family, {}) | ONLY.get((family, kind or saved), {})
    )
    settings |= {"position_embedding_type": kind} if kind else {}
    settings |= {"num_hidden_layers": 1} if extra and family != "albert" else {}  # its groups share what layers weigh
    settings |= {"num_labels": 3} if "Classification" in saved else {}
    settings |= over or {}
    settings = {SPELLED.get(family, {}).get(key, key): value for key, value in settings.items()}
    stem = (CLASSES | OWN)[family]
    config = getattr(transformers, stem + "Config")(**settings)
    model = getattr(transformers, stem + saved)(config).eval()
    randomise(model, rng)
    model.save_pretrained(target, safe_serialization=True)
    model = type(model).from_pretrained(target).double().eval()
    eager = type(model).from_pretrained(target, attn_implementation="eager").double().eval()

    overhead = config.pad_token_id + 1 if family in NUMBERED_AFTER_PADDING and kind in ("absolute", None) else 0
    longest = config.max_position_embeddings - overhead
    tensors = {}
    for point, (length, rows, side) in points(longest).items():
        given = inputs(config, length, rows, side, rng)
        if len(rows) == 1 and length == longest:
            check(model, eager, given)
        padded = point in ("right-17", "left-17")
        for name, value in (run(model, given) | pooled(model, given)).items():
            wanted = (padded if extra else True) if name == "last_hidden_state" else padded
            wanted = wanted and not (name == "logits" and saved == "ForMaskedLM" and point != "left-17")
            if FIVE and family == "esm":
                value = value * given["attention_mask"][..., None]  # its padding attends to other tokens than ours
            if wanted:
                tensors |= {f"{point}.{key}": t.to(torch.uint8) for key, t in given.items()}
                tensors[f"{point}.{name}"] = value.float().contiguous()
    save_file(tensors, target / "expected.safetensors")
    target.joinpath("generation_config.json").unlink(missing_ok=True)


def checkpoints() -> Checkpoints:
    """Every family with every position type, and other tasks of some."""
    plan = [(f"{family}-{kind}", family, kind, SAVED[kind], False) for family in CLASSES for kind in TYPES]
    plan += [(f"{family}-{kind}-{task}", family, kind, task, True) for family, kind, task in EXTRAS]
    plan += [(f"{family}-{saved}", family, None, saved, not saved.endswith("MaskedLM")) for family, saved in EXTRAS_OWN]
    return {
        name.lower(): partial(make, family=family, kind=kind, saved=saved, seed=seed, extra=extra)
        for seed, (name, family, kind, saved, extra) in enumerate(plan, start=20_000)
    }
