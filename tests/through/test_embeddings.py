"""Embeddings in place of ids, and virtual tokens, against ``generate`` of transformers with ``inputs_embeds``."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import posexport
from posexport.models.embeddings_input import EmbeddingsInput
from tests.tolerances import agree

SIZES = {"vocab_size": 61, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 24}
STEPS = 8


def tiny(folder: Path, kind: str) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    more = {} if kind == "Bert" else {"num_key_value_heads": 5, "head_dim": 8, "tie_word_embeddings": False}
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more, max_position_embeddings=64)
    causal = f"{kind}ForCausalLM" if hasattr(transformers, f"{kind}ForCausalLM") and kind != "Bert" else f"{kind}Model"
    model = getattr(transformers, causal)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model.save_pretrained(folder)
    return model


def expected(model: Any, x_BTC: Tensor, mask_BT: Tensor, **options: Any) -> list[list[int]]:
    tokens: Tensor = model.generate(
        inputs_embeds=x_BTC,
        attention_mask=mask_BT,
        max_new_tokens=STEPS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    return tokens.tolist()


@pytest.mark.all
@pytest.mark.filterwarnings("ignore:Passing `repetition_penalty`")
@pytest.mark.parametrize(
    ("kind", "definition"), [("Llama", "paper"), ("Llama", "transformers"), ("Gemma", "paper"), ("Granite", "paper")]
)
def test_completions_of_embeddings_are_transformers(kind: str, definition: Any, tmp_path: Path) -> None:
    model = tiny(tmp_path / "m", kind)
    done = posexport.convert(
        str(tmp_path / "m"),
        tmp_path / "b",
        input="embeddings",
        definition=definition,
        lengths=[5, 17],
        task="text-generation",
    )
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    session = posexport.load(tmp_path / "b")
    ids = torch.tensor([[5, 9, 2, 17]])
    embedded = model.get_input_embeddings()(ids).detach().numpy()
    agree(session.embed_tokens(ids.numpy()), embedded, "model", np.float32)
    x_BTC = np.random.default_rng(0).standard_normal((2, 7, SIZES["hidden_size"])).astype(np.float32)
    mask_BT = np.array([[1] * 7, [0] * 3 + [1] * 4])
    # with a penalty transformers 5.24 takes as many new tokens for padding as the row has before it
    for options, rows in (({}, 2), ({"num_beams": 3}, 2), ({"repetition_penalty": 3.0}, 1)):
        given = {"inputs_embeds": x_BTC[:rows], "attention_mask": mask_BT[:rows]}
        got = session.generate(given, max_new_tokens=STEPS, eos_token_id=[], **options).completions
        want = expected(model, torch.from_numpy(x_BTC[:rows]), torch.from_numpy(mask_BT[:rows]), **options)
        assert [one.tokens for one in got] == want


@pytest.mark.all
def test_hidden_states_of_an_encoder_of_transformers(tmp_path: Path) -> None:
    model = tiny(tmp_path / "m", "Bert")
    posexport.convert(
        str(tmp_path / "m"), tmp_path / "b", input="embeddings", definition="transformers", lengths=[5], task="features"
    )
    x_BTC = np.random.default_rng(0).standard_normal((2, 7, SIZES["hidden_size"])).astype(np.float32)
    got = posexport.load(tmp_path / "b").run({"inputs_embeds": x_BTC})["last_hidden_state"]
    with torch.no_grad():
        want = model(inputs_embeds=torch.from_numpy(x_BTC)).last_hidden_state
    agree(got, want, "model", np.float32)


@pytest.mark.all
@pytest.mark.parametrize("definition", ["paper", "transformers"])
def test_completions_behind_virtual_tokens_are_transformers(definition: Any, tmp_path: Path) -> None:
    model, folder = tiny(tmp_path / "m", "Llama"), tmp_path / "tuned"
    folder.mkdir()
    virtual = torch.randn(3, SIZES["hidden_size"], generator=torch.Generator().manual_seed(2))
    stated = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
    folder.joinpath("adapter_config.json").write_text(json.dumps({**stated, "base_model_name_or_path": "org/m"}))
    save_file({"prompt_embeddings": virtual}, folder / "adapter_model.safetensors")
    done = posexport.convert(str(folder), tmp_path / "b", definition=definition, lengths=[5, 17])
    assert done.report is not None
    assert done.report.passed, done.report.describe()
    session, rows = posexport.load(tmp_path / "b"), [[5, 9, 2, 17], [7, 3]]
    got = [one.tokens for one in session.generate(rows, max_new_tokens=STEPS, eos_token_id=[]).completions]
    for row, tokens in zip(rows, got, strict=True):
        x_BTC = torch.cat((virtual, model.get_input_embeddings()(torch.tensor(row))))[None]
        assert expected(model, x_BTC, torch.ones(x_BTC.shape[:2], dtype=torch.int64)) == [tokens]


@pytest.mark.all
def test_a_decoder_with_states_is_judged_by_its_own_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without embeddings: posexport wrote its decode steps, so they alone would prove themselves."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    more = {"num_key_value_heads": 5, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False}
    config = transformers.Lfm2Config(**SIZES, **more, max_position_embeddings=64)
    transformers.Lfm2ForCausalLM(config).eval().save_pretrained(tmp_path / "m")
    forward = EmbeddingsInput.uncached_logits
    monkeypatch.setattr(EmbeddingsInput, "uncached_logits", lambda *given, **named: 1.01 * forward(*given, **named))
    with pytest.raises(posexport.PosexportError, match="its own forward gives other logits"):
        posexport.convert(str(tmp_path / "m"), tmp_path / "b", input="embeddings", lengths=[5])
