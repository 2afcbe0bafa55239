"""Prompt tuning, P-tuning and prefix tuning as peft saves them, against the base model called with what peft gives it.

Of prompt tuning and P-tuning: embeddings of the virtual tokens before those of the tokens. Of prefix tuning: past keys
and values, ``view(N, 2 * layers, heads, D).permute(1, 2, 0, 3)`` of the stored matrix (`PeftModel.get_prompt`).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.errors import PosexportError
from posexport.models.with_prefix import WithPrefix
from posexport.sources.embeddings_input import with_embeddings
from posexport.sources.layer_outputs import with_outputs
from posexport.sources.prepare import with_kv_cache
from posexport.sources.source import Source
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden"
LLAMA, GPT2, GRANITE = "llama-forcausallm", "gpt2-lmheadmodel", "granite-forcausallm"
COUNT = 4
IDS = torch.tensor([[5, 9, 2, 17, 7, 11], [3, 4, 8, 12, 2, 1]])
MASK = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])


def golden(name: str) -> Source:
    return checkpoint_source(GOLDEN / name, task=None, allow_pickle=False)


def tuned(folder: Path, name: str, kind: str, width: int, **settings: Any) -> tuple[Path, Tensor]:
    """A folder as peft saves it, and its matrix."""
    folder.mkdir()
    matrix = torch.from_numpy(np.random.default_rng(1).standard_normal((COUNT, width))).float()
    stated = {
        "base_model_name_or_path": str(GOLDEN / name),
        "peft_type": kind,
        "task_type": "CAUSAL_LM",
        "num_virtual_tokens": COUNT,
        "num_transformer_submodules": 1,
        "inference_mode": True,
        **settings,
    }
    folder.joinpath("adapter_config.json").write_text(json.dumps(stated))
    save_file({"prompt_embeddings": matrix}, folder / "adapter_model.safetensors")
    return folder, matrix


def loaded(folder: Path) -> Source:
    return checkpoint_source(folder, task=None, allow_pickle=False)


def with_ones(mask: Tensor) -> Tensor:
    return torch.cat((mask.new_ones(len(mask), COUNT), mask), 1)


def in_two_calls(source: Source, ids: Tensor, mask: Tensor) -> Tensor:
    """The logits of a prefill of three tokens, and of a call with the others."""
    logits, *present = source.module(input_ids=ids[:, :3], attention_mask=mask[:, :3])
    return torch.cat((logits, source.module(ids[:, 3:], mask, present)[0]), 1)


@pytest.mark.parametrize(("name", "kind"), [(LLAMA, "PROMPT_TUNING"), (GPT2, "PROMPT_TUNING"), (GRANITE, "P_TUNING")])
def test_embeddings_of_virtual_tokens_are_before_those_of_tokens(name: str, kind: str, tmp_path: Path) -> None:
    base = golden(name)
    embed, rest = (part.module for part in with_embeddings(base).parts)
    with torch.no_grad():
        x_BTC = embed(IDS)[0]
        folder, matrix = tuned(tmp_path / "a", name, kind, x_BTC.shape[-1])
        source = loaded(folder)
        joined = torch.cat((matrix.expand(2, -1, -1), x_BTC), 1)
        expected = rest(joined, attention_mask=with_ones(MASK))[0][:, COUNT:]
        plain = base.module(input_ids=IDS, attention_mask=MASK)[0]
        got = source.module(input_ids=IDS, attention_mask=MASK)[0]
        cut = in_two_calls(source, IDS, MASK)
    agree(got[MASK == 1], expected[MASK == 1], "model", np.float32)
    agree(cut[MASK == 1], expected[MASK == 1], "model", np.float32)
    assert float((got - plain).abs().max()) > 0.1 * float(plain.abs().max())
    assert any("4 virtual tokens" in remark for remark in source.remarks)
    if base.limits.max_length is not None:
        assert source.limits.max_length == base.limits.max_length - COUNT


@pytest.mark.parametrize("name", [LLAMA, GPT2])
def test_a_prefix_is_past_keys_and_values(name: str, tmp_path: Path) -> None:
    base = golden(name)
    shapes = [spec.axes for spec in base.inputs if spec.role == "cache"]
    _, heads, _, size = shapes[0]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    folder, matrix = tuned(tmp_path / "a", name, "PREFIX_TUNING", len(shapes) * heads * size)
    past = matrix.view(COUNT, len(shapes), heads, size).permute(1, 2, 0, 3)
    source = loaded(folder)
    with torch.no_grad():
        before = [x.expand(2, -1, -1, -1) for x in past]
        expected = base.module(input_ids=IDS, attention_mask=with_ones(MASK), past_key_values=before)[0]
        got = source.module(input_ids=IDS, attention_mask=MASK)[0]
        cut = in_two_calls(source, IDS, MASK)
    agree(got[MASK == 1], expected[MASK == 1], "model", np.float32)
    agree(cut[MASK == 1], expected[MASK == 1], "model", np.float32)


def test_the_folder_decides_the_digest_and_options_that_change_keys_are_refused(tmp_path: Path) -> None:
    folder, _ = tuned(tmp_path / "a", LLAMA, "PROMPT_TUNING", 20)
    source = loaded(folder)
    assert isinstance(source.module, WithPrefix)
    assert source.sha256 != golden(LLAMA).sha256
    with pytest.raises(PosexportError, match="--cache static would change the keys of the virtual tokens"):
        with_kv_cache(source, "static", "at-write")
    with pytest.raises(PosexportError, match=r"--outputs hidden_states: .* has virtual tokens"):
        with_outputs(source, ["hidden_states:1"])


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        (LLAMA, {"peft_type": "MULTITASK_PROMPT_TUNING"}, "MULTITASK_PROMPT_TUNING; of virtual tokens PROMPT_TUNING"),
        (LLAMA, {"task_type": "SEQ_CLS"}, "task_type = 'SEQ_CLS'; virtual tokens are put before decoders"),
        (LLAMA, {"num_virtual_tokens": 5}, r"num_virtual_tokens = 5 tokens, got the shape \[4, 20\]"),
        (LLAMA, {"modules_to_save": ["score"]}, "sets modules_to_save, which is no part of plain PROMPT_TUNING"),
        (LLAMA, {"base_model_name_or_path": "org/none"}, "holds an adapter alone .*'org/none'"),
        (GPT2, {"width": 21}, "virtual tokens have 21 channels, and tokens of the model in"),
        (LLAMA, {"peft_type": "PREFIX_TUNING"}, "a virtual token has 20 numbers, and keys and values of the model"),
        ("bloom-forcausallm", {}, "only rotations and position embeddings are supported"),
        ("llama-dynamic-forcausallm", {}, "depend on the length of a row"),
    ],
)
def test_other_virtual_tokens_are_refused(tmp_path: Path, name: str, settings: dict[str, Any], said: str) -> None:
    settings = dict(settings)
    kind, width = settings.pop("peft_type", "PROMPT_TUNING"), settings.pop("width", 20)
    folder, _ = tuned(tmp_path / "a", name, kind, width, **settings)
    with pytest.raises(PosexportError, match=said):
        loaded(folder)
