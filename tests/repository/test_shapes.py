"""ci/lab/shapes: shards that safetensors reads, the same weights in any number of them, and tokenizers of any size."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from ci.lab.deployed import make
from ci.lab.deployed.tokenizers import TOKENIZERS

TENSORS = {
    "model.embed_tokens.weight": torch.empty(40, 6, device="meta"),
    "model.layers.0.mlp.up_proj.weight": torch.empty(10, 6, device="meta"),
    "model.norm.weight": torch.empty(6, device="meta"),
}


def test_shards_have_the_weights_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shards").mkdir()
    make.write_weights(TENSORS, torch.bfloat16, tmp_path)
    monkeypatch.setattr(make, "_SHARD", 500)
    make.write_weights(TENSORS, torch.bfloat16, tmp_path / "shards")
    whole = load_file(tmp_path / "model.safetensors")
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * sum(tensor.numel() for tensor in TENSORS.values())
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / "shards" / file)[name], whole[name])
    assert all(tensor.dtype == torch.bfloat16 for tensor in whole.values())
    assert 0.9 < float(whole["model.norm.weight"].float().mean()) < 1.1
    assert 0.01 < float(whole["model.embed_tokens.weight"].float().std()) < 0.03


def test_a_shape_is_cut_to_its_first_layers() -> None:
    config: dict[str, Any] = make.SHAPES["qwen2.5-vl-3b"]["config"]
    found = make.cut(config, 10)
    assert found["num_hidden_layers"] == found["vision_config"]["depth"] == 10
    assert found["vision_config"]["fullatt_block_indexes"] == [7]
    assert config["num_hidden_layers"] == 36


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_has_the_vocabulary_and_knows_all_text(kind: str, tmp_path: Path) -> None:
    config = {"vocab_size": 700, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 64}
    TOKENIZERS[kind](config, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 700
    assert tokenizer.decode(tokenizer.encode("the cat sat").ids) == "the cat sat"
