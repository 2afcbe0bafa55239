"""LoRA adapters that rows choose, of encoders through transformers: jina-embeddings-v3, a folder for each task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import posexport
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.errors import PosexportError
from tests.checkpoints.test_adapters import adapter
from tests.tolerances import agree

SIZES = {
    "vocab_size": 61,
    "hidden_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
TASKS = ("retrieval.query", "retrieval.passage")


def made(folder: Path, base: Path, model: Any, rank: int) -> Path:
    """An adapter of every linear layer of the layers, and of the word embeddings, by the model's names as peft does."""
    rng, tensors = np.random.default_rng(rank), dict[str, Tensor]()
    for name, weight in model.named_parameters():
        embedding = name.endswith("word_embeddings.weight")
        if weight.ndim == 2 and (embedding or "layers." in name):
            outputs, inputs = weight.shape[::-1] if embedding else weight.shape
            leaves = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight")
            for leaf, shape in zip(leaves, ((rank, inputs), (outputs, rank)), strict=True):
                tensors[f"{name.removesuffix('weight')}{leaf}"] = torch.from_numpy(rng.standard_normal(shape)).float()
    return adapter(folder, base, tensors, r=rank)


@pytest.mark.all
def test_each_task_is_its_merged_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.JinaEmbeddingsV3Config(**SIZES, tie_word_embeddings=False)  # tied ones are not merged
    model = transformers.JinaEmbeddingsV3Model(config)
    model.save_pretrained(tmp_path / "base")
    adapters = {name: made(tmp_path / name, tmp_path / "base", model, rank) for rank, name in enumerate(TASKS, 2)}
    done = posexport.convert(
        str(tmp_path / "base"), tmp_path / "b", adapters=adapters, lengths=[5, 17], target="cpu", threads=1
    )
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    session = posexport.load(tmp_path / "b", threads=1)
    assert session.adapters == [*TASKS]
    ids = [[5, 9, 2, 17, 7]] * 3
    got = session.run({"input_ids": ids, "adapter_ids": [2, 0, 1]})["last_hidden_state"]
    for row, folder in enumerate((adapters[TASKS[1]], tmp_path / "base", adapters[TASKS[0]])):
        merged = checkpoint_source(folder, task="features", allow_pickle=False).module.double()
        with torch.no_grad():
            one = torch.tensor(ids[:1])
            want, *_ = merged(input_ids=one, attention_mask=torch.ones_like(one))
            # drawn adapters are as large as the weights: several products one behind the other
            agree(got[row], want[0], "model in float32", np.float32, 4)


@pytest.mark.all
def test_decoders_are_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BioGptConfig(**SIZES, num_labels=2, pad_token_id=0)
    model = transformers.BioGptForCausalLM(config)
    model.save_pretrained(tmp_path / "base")
    lora = made(tmp_path / "a", tmp_path / "base", model, 2)
    with pytest.raises(PosexportError, match="--adapters is for encoders through transformers"):
        checkpoint_source(tmp_path / "base", task=None, allow_pickle=False, adapters={"a": lora})
