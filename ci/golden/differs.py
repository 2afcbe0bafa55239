"""Writes tests/golden for what transformers' code does otherwise than a paper, or than a key of config.json says.

A key that is ignored has a value here that would show if it were read. Falcon's ALiBi is as transformers computes it,
rounded to bfloat16: 32 heads, of which most have slopes that bfloat16 does not hold, and more than 256 tokens, beyond
which it does not hold positions either. The makers are those of the other topics.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import bert
import gpt
import llama
import seq2seq
import text
from common import Checkpoints

#: made by `llama`, `seq2seq`, `text` and `gpt`: the entry of their plan
DECODERS = {
    "gemma-activation-forcausallm": ("Gemma", llama.SIZES | {"hidden_act": "relu", "hidden_activation": "tanh"}),
    "gemma3-softcapping-forcausallm": (
        "Gemma3",
        llama.PLAN["gemma3-forcausallm"][1] | {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 3.0},
    ),
}
T5_ACTIVATION = {"feed_forward_proj": "relu", "dense_act_fn": "tanh", "is_gated_act": True}
FALCON = gpt.FALCON | {"hidden_size": 64, "num_attention_heads": 32, "alibi": True, "bias": True}
FALCON_POINTS = {
    "none-17": ([17], "right"),
    "none-33": ([33], "right"),
    "none-64": ([64], "right"),
    "none-300": ([300], "right"),
    "left-21": ([21, 9, 1], "left"),
}


def _other(module: Any, name: str, entry: Any, seed: int, points: Any = None) -> Callable[[Path], None]:
    """The module's maker with one more entry in its plan, and with other ``points`` if it has its own."""

    def make(target: Path) -> None:
        own = {} if points is None else {"POINTS": points}
        with mock.patch.multiple(module, PLAN=module.PLAN | {name: entry}, **own):
            module.make(target, name=name, seed=seed)

    return make


def _esm(target: Path) -> None:
    with mock.patch.dict(bert.ONLY, {("esm", "Model"): {"hidden_act": "relu", "token_dropout": False}}):
        bert.make(target, "esm", None, "Model", 33_000, extra=False)


def checkpoints() -> Checkpoints:
    """All of this topic."""
    t5 = ("T5ForConditionalGeneration", "T5Config", seq2seq.T5 | T5_ACTIVATION)
    umt5 = ("UMT5EncoderModel", "UMT5Config", text.T5 | {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"})
    falcon = ("FalconForCausalLM", "FalconConfig", FALCON)
    name = "falcon-bfloat16-forcausallm"
    return {
        "esm-activation-model": _esm,
        **{key: _other(llama, key, entry, seed) for seed, (key, entry) in enumerate(DECODERS.items(), start=33_001)},
        **{
            key: _other(module, key, entry, seed)
            for key, module, entry, seed in (
                ("t5-activation-forconditionalgeneration", seq2seq, t5, 33_010),
                ("umt5-activation-encodermodel", text, umt5, 33_011),
            )
        },
        name: _other(gpt, name, falcon, 33_020, points=FALCON_POINTS),
    }
