"""Which checkpoints are made with transformers 5 too: those whose config.json or tensors it writes otherwise than 4.

They have the seeds, so the weights, of the others, and ``-v5`` behind their names. What differs:

* ``rope_theta``, ``rope_scaling``, ``partial_rotary_factor`` (in GPT-NeoX ``rotary_emb_base``, ``rotary_pct``) are one
  table, ``rope_parameters``; with layers of two kinds (Gemma 3, ModernBERT) it has a table for each.
* ``original_max_position_embeddings`` is in that table, for Phi-3 beside it too.
* ESM writes its table of frequencies once for all layers, as that of layer ``*``, and calls the weights and biases of
  norms gamma and beta.
* ``tie_word_embeddings`` is always written, and in T5 and mT5 always true; whether what the head reads is scaled, which
  it told before, is ``scale_decoder_outputs`` in T5, and never done in mT5.
* A decoder of BERT's fill-mask head that is not tied has a bias of its own; the head's, which 4 adds, is stored too.
"""

from functools import partial
from typing import Any

from common import Checkpoints

#: name to settings that 4 has otherwise
CHANGED: dict[str, dict[str, Any]] = {
    "llama-dynamic-forcausallm": {},
    "llama-llama3-forcausallm": {},
    "phi3-longrope-forcausallm": {},
    "gemma3-forcausallm": {"hidden_size": 30},  # heads must divide the size there
    "phi-forcausallm": {},
    "stablelm-parallel-forcausallm": {},
    "falcon-forcausallm": {},
    "gpt_neox-sequential-forcausallm": {},
    "modernbert-cls": {},
    "esm-fortokenclassification": {},
    "t5-gated-forconditionalgeneration": {},
    "mt5-forconditionalgeneration": {},
    "bert-absolute": {"tie_word_embeddings": False},
}


def checkpoints(known: Checkpoints) -> Checkpoints:
    """Those of `CHANGED`, made as 4's are."""
    return {f"{name}-v5": partial(known[name], over=over) if over else known[name] for name, over in CHANGED.items()}
