"""A config.json without model_type: the error says which line to add."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import change, configure, refusal


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        # names with the prefix bert., and without a prefix, as rxnfp's checkpoints have them
        ("bert-absolute", "bert"),
        ("bert-relative_key", "bert"),
        ("distilbert-forsequenceclassification", "distilbert"),
        ("gpt2-lmheadmodel", "gpt2"),
        ("llama-forcausallm", "llama"),
        ("bart-forsequenceclassification", "bart"),
    ],
)
def test_the_line_to_add(name: str, model_type: str, copy: Callable[[str], Path]) -> None:
    folder = copy(name)
    configure(folder, model_type=..., architectures=...)
    assert f'add the line "model_type": "{model_type}"' in refusal(folder)


def test_types_with_the_same_tensors_are_named(copy: Callable[[str], Path]) -> None:
    folder = copy("roberta-absolute")
    configure(folder, model_type=...)
    sentence = refusal(folder)
    assert 'are those of roberta: add the line "model_type": "roberta", (xlm-roberta, camembert' in sentence
    assert "(roberta.embeddings." in sentence


def test_tensors_of_no_type_list_the_types(masked: Path) -> None:
    configure(masked, model_type=...)
    change(masked, lambda t: t.update({"gate.weight": torch.ones(2)}))
    assert "has no model_type; it must be one of bert, distilbert" in refusal(masked)
