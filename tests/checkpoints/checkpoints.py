"""Reading, changing and comparing checkpoint directories."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.errors import PosexportError
from posexport.sources.source import Source

GOLDEN = Path(__file__).parent.parent / "golden"
Tensors = dict[str, torch.Tensor]


def read(directory: Path, task: str | None = None, *, allow_pickle: bool = False) -> Source:
    return checkpoint_source(directory, task=task, allow_pickle=allow_pickle)


def refusal(directory: Path, task: str | None = None, *, allow_pickle: bool = False) -> str:
    """The sentence, which names the directory."""
    with pytest.raises(PosexportError) as caught:
        read(directory, task, allow_pickle=allow_pickle)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def configure(directory: Path, name: str = "config.json", **values: Any) -> None:
    """Change config.json; ``...`` removes a key."""
    path = directory / name
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def change(directory: Path, edit: Callable[[Tensors], Any]) -> None:
    """Change the tensors in model.safetensors."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def outputs(source: Source) -> tuple[torch.Tensor, ...]:
    ids = torch.arange(5, 5 + 2 * 9).view(2, 9)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if any(spec.name == "token_type_ids" for spec in source.inputs):
        given["token_type_ids"] = torch.zeros_like(ids)
    with torch.inference_mode():
        found: tuple[torch.Tensor, ...] = source.module(**given)
    return found


def same(a: Source, b: Source) -> bool:
    return all(torch.equal(x, y) for x, y in zip(outputs(a), outputs(b), strict=True))
