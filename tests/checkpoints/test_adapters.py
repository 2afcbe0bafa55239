"""LoRA adapters merged into their models, against the adapter computed beside the model in float64."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.errors import PosexportError
from posexport.sources.source import Source
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden"
RANK = 3


def adapter(folder: Path, base: Path, tensors: dict[str, Tensor], **settings: Any) -> Path:
    folder.mkdir()
    named = {"base_model_name_or_path": str(base), "peft_type": "LORA", "r": RANK, "lora_alpha": 5, **settings}
    folder.joinpath("adapter_config.json").write_text(json.dumps(named))
    save_file({f"base_model.model.{name}": x for name, x in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def loaded(folder: Path, task: str | None = None) -> Source:
    return checkpoint_source(folder, task=task, allow_pickle=False)


def pair(module: str, inputs: int, outputs: int, seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((RANK, inputs)), rng.standard_normal((outputs, RANK))
    return {
        f"{module}.lora_A.weight": torch.from_numpy(a).float(),
        f"{module}.lora_B.weight": torch.from_numpy(b).float(),
    }


def logits(source: Source, beside: dict[str, tuple[Tensor, Tensor, float]]) -> Tensor:
    """In float64, with ``scale`` B A x beside the linear projections of ``beside``."""
    module = source.module.double()
    for path, (a, b, scale) in beside.items():
        part = module.get_submodule(path)
        assert isinstance(part, nn.Linear)
        part.register_forward_hook(
            lambda _, x, y, a=a, b=b, scale=scale: y + scale * (x[0] @ a.double().T) @ b.double().T
        )
    with torch.no_grad():
        answer: Tensor = module(input_ids=torch.tensor([[5, 9, 2, 17, 7]]))[0]
    return answer


@pytest.mark.parametrize(
    ("golden", "stored", "own", "settings", "scale"),
    [
        ("llama-forcausallm", "model.layers.1.mlp.gate_proj", "decoder.layers.1.feedforward.inner", {}, 5 / RANK),
        # trained without the head's class, whose prefix the file has
        ("llama-forcausallm", "layers.0.mlp.up_proj", "decoder.layers.0.feedforward.gate", {}, 5 / RANK),
        (
            "llama-forcausallm",
            "model.layers.0.self_attn.q_proj",
            "decoder.layers.0.attention.query",
            {"use_rslora": True, "alpha_pattern": {"q_proj": 7}},
            7 / RANK**0.5,
        ),
        (
            "gpt2-lmheadmodel",
            "transformer.h.1.mlp.c_fc",
            "decoder.layers.1.feedforward.inner",
            {"fan_in_fan_out": True},
            5 / RANK,
        ),
    ],
)
def test_a_merged_adapter_is_the_adapter_beside_the_model(
    tmp_path: Path, golden: str, stored: str, own: str, settings: dict[str, Any], scale: float
) -> None:
    base = loaded(GOLDEN / golden)
    part = base.module.get_submodule(own)
    assert isinstance(part, nn.Linear)
    tensors = pair(stored, part.in_features, part.out_features, seed=0)
    merged = loaded(adapter(tmp_path / "adapter", GOLDEN / golden, tensors, **settings))
    plain = logits(loaded(GOLDEN / golden), {})
    wanted = logits(base, {own: (*tensors.values(), scale)})
    agree(logits(merged, {}), wanted, "model in float32", np.float32)
    assert float((wanted - plain).abs().max()) > 0.1 * float(wanted.abs().max())
    assert merged.sha256 != base.sha256
    assert any("is an adapter; it is merged into the model in" in remark for remark in merged.remarks)


def test_a_base_model_beside_the_adapter_and_layers_of_its_own(tmp_path: Path) -> None:
    """The model is found by its name; modules_to_save take the place of its weights."""
    shutil.copytree(GOLDEN / "bert-absolute", tmp_path / "base")
    weights = load_file(tmp_path / "base/model.safetensors")
    name = next(name for name in weights if name.endswith("layer.0.output.dense.bias"))
    own = torch.full_like(weights[name], 0.25)
    made = adapter(tmp_path / "adapter", Path("org/base"), {name: own}, modules_to_save=["dense"])
    source = loaded(made)
    changed = [key for key, x in source.module.named_parameters() if torch.equal(x, own)]
    assert len(changed) == 1
    assert source.name == str(made)
    assert source.files["config.json"] == tmp_path / "base/config.json"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_dora": True}, "sets use_dora, which is no part of plain LoRA"),
        ({"peft_type": "LOHA"}, "peft_type = 'LOHA'; only LORA is read"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa', which changes the model's own weights"),
        ({"r": 4}, "has the rank 3, and its adapter_config.json says r = 4"),
        ({"rank_pattern": {"(a+)+": 2}}, "rank_pattern of its adapter_config.json holds more than names"),
        ({"base_model_name_or_path": "org/none"}, "holds an adapter alone .*'org/none'; put the model's folder beside"),
        ({"target_parameters": ["x"]}, "sets target_parameters"),
    ],
)
def test_what_is_not_merged_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    tensors = pair("model.layers.0.mlp.gate_proj", 32, 24, seed=0)
    made = adapter(tmp_path / "adapter", GOLDEN / "llama-forcausallm", tensors, **settings)
    with pytest.raises(PosexportError, match=said):
        loaded(made)


def test_a_model_of_another_library(tmp_path: Path) -> None:
    """The folder is there, without the config.json of transformers, as gliner writes it."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "gliner_config.json").write_text("{}")
    tensors = pair("model.layers.0.mlp.gate_proj", 32, 24, seed=0)
    made = adapter(tmp_path / "adapter", Path("org/base"), tensors)
    with pytest.raises(PosexportError, match=r"an adapter of the model in .*/base, which has no config.json"):
        loaded(made)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (pair("model.layers.9.mlp.gate_proj", 32, 24, seed=0), "model.layers.9.mlp.gate_proj.weight, which the model"),
        (pair("model.layers.0.mlp.gate_proj", 5, 24, seed=0), "of the shape .*, and it is"),
        ({"model.layers.0.mlp.gate_proj.lora_magnitude_vector": torch.ones(3)}, "no part of plain LoRA"),
        ({"model.layers.0.mlp.gate_proj.lora_A.weight": torch.ones(RANK, 4)}, "needs two matrices"),
        (
            {
                "model.embed_tokens.lora_embedding_A": torch.ones(RANK, 4),
                "model.embed_tokens.lora_embedding_B": torch.ones(4, RANK),
            },
            "whose weights the head shares",
        ),
        ({"model.norm.weight": torch.tensor([float("nan")])}, "other values than finite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path, tensors: dict[str, Tensor], said: str) -> None:
    base = tmp_path / "base"
    shutil.copytree(GOLDEN / "llama-forcausallm", base)
    config = json.loads(base.joinpath("config.json").read_text())
    base.joinpath("config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(PosexportError, match=said):
        loaded(adapter(tmp_path / "adapter", base, tensors))
