"""``auto_map``: code of a checkpoint is never run; it is read where its configuration and tensors fit exactly.

The keys are those of the released config.json files (microsoft/Phi-3-mini-4k-instruct, microsoft/Phi-4-mini-instruct,
tiiuae/falcon-7b, mosaicml/mpt-7b, jinaai/jina-embeddings-v2-base-en); the sizes are those of golden checkpoints.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import change, configure, read, refusal

from posexport.sources.source import Source

Copy = Callable[[str], Path]
Json = dict[str, Any]
PHI3_MAP = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
}
#: golden checkpoint: what the released file has beside (or instead of) what transformers wrote into the golden one
RELEASED: dict[str, Json] = {
    "phi3-forcausallm": {
        "_name_or_path": "Phi-3-mini-4k-instruct",
        "auto_map": PHI3_MAP,
        "attention_bias": False,
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.2",
        "dtype": ...,
    },
    "phi3-longrope-forcausallm": {
        "_name_or_path": "Phi-4-mini-instruct",
        "auto_map": {**PHI3_MAP, "AutoTokenizer": "Xenova/gpt-4o"},
        "attention_bias": False,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
    },
    "falcon-old-forcausallm": {
        "auto_map": {
            "AutoConfig": "configuration_falcon.FalconConfig",
            "AutoModel": "modeling_falcon.FalconModel",
            "AutoModelForCausalLM": "modeling_falcon.FalconForCausalLM",
            "AutoModelForQuestionAnswering": "modeling_falcon.FalconForQuestionAnswering",
            "AutoModelForSequenceClassification": "modeling_falcon.FalconForSequenceClassification",
            "AutoModelForTokenClassification": "modeling_falcon.FalconForTokenClassification",
        },
        "apply_residual_connection_post_layernorm": False,
        "alibi": False,
        "num_kv_heads": 71,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.27.4",
    },
    "mpt-forcausallm": {
        "architectures": ["MPTForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_mpt.MPTConfig",
            "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM",
        },
        "embedding_fraction": 1.0,
        "init_config": {"emb_init_std": None, "fan_mode": "fan_in", "name": "kaiming_normal_", "verbose": 0},
        "init_device": "cpu",
        "learned_pos_emb": True,
        "norm_type": "low_precision_layernorm",
        "tokenizer_name": "EleutherAI/gpt-neox-20b",
        "verbose": 0,
        "layer_norm_epsilon": ...,
        "initializer_range": ...,
    },
}
FAMILY = {name: name.partition("-")[0] for name in RELEASED}


def released(directory: Path) -> Path:
    """The golden checkpoint with the keys of the released one, and code that leaves a mark where it is run."""
    configure(directory, **RELEASED[directory.name])
    for kind in ("configuration", "modeling"):
        file = directory / f"{kind}_{FAMILY[directory.name]}.py"
        file.write_text(f"open({str(directory / 'executed')!r}, 'w')\n")
    return directory


def logits(source: Source) -> torch.Tensor:
    ids = torch.arange(5, 5 + 2 * 9).view(2, 9)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for spec in source.inputs:
        if spec.role == "cache":
            given[spec.name] = torch.zeros([2 if i == 0 else axis if isinstance(axis, int) else 0
                                            for i, axis in enumerate(spec.axes)])  # fmt: skip
    with torch.inference_mode():
        found: torch.Tensor = source.module(**given)[0]
    return found


@pytest.mark.parametrize("name", RELEASED)
def test_what_was_released_with_code_is_read_without_it(copy: Copy, name: str) -> None:
    directory = copy(name)
    before = read(directory)
    assert not any("auto_map" in remark for remark in before.remarks)
    source = read(released(directory))
    assert source.task == "text-generation"
    assert torch.equal(logits(source), logits(before))
    assert (
        f"config.json names custom code (auto_map: configuration_{FAMILY[name]}.py, modeling_{FAMILY[name]}.py); "
        f"it is not run: the checkpoint is read by posexport's definition of {FAMILY[name]}, whose tensors fit exactly"
    ) in source.remarks
    assert not (directory / "executed").exists()
    assert not any(path.suffix == ".py" for path in source.files.values())


def test_code_in_another_repository(copy: Copy) -> None:
    directory = released(copy("phi3-forcausallm"))
    elsewhere = {key: f"microsoft/Phi-3-mini-4k-instruct--{name}" for key, name in PHI3_MAP.items()}
    configure(directory, auto_map=elsewhere)
    assert any("modeling_phi3.py" in remark for remark in read(directory).remarks)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("phi3-forcausallm", {"mup_multiplier": 8.0}, "does not know: mup_multiplier = 8.0;"),
        ("phi3-forcausallm", {"attention_bias": True}, "does not know: attention_bias = True;"),
        ("phi3-forcausallm", {"full_attn_mod": 2}, "does not know: full_attn_mod = 2;"),
        ("phi3-forcausallm", {"full_attn_mod": True}, "does not know: full_attn_mod = True;"),
        ("phi3-forcausallm", {"zeta": 1, "alpha": {}}, "does not know: alpha = {}, zeta = 1;"),
        ("phi3-forcausallm", {"rope_scaling": {"type": "linear", "factor": 2.0, "odd": 1}}, "is given with odd"),
        ("phi3-forcausallm", {"num_hidden_layers": 1}, "are not used"),
        ("phi3-forcausallm", {"architectures": ["Phi3SmallForCausalLM"]}, "Phi3SmallForCausalLM is not phi3's"),
        ("phi3-forcausallm", {"auto_map": {"AutoModel": "modeling_phi.Phi3Model"}}, "modeling_phi.Phi3Model is not"),
        ("phi3-forcausallm", {"auto_map": {"AutoModel": ["x", "y"]}}, "it must be a class in a file"),
        ("phi3-forcausallm", {"auto_map": "modeling_phi3"}, "it must map names to classes"),
        ("falcon-old-forcausallm", {"apply_residual_connection_post_layernorm": True}, "post_layernorm = True"),
        ("falcon-old-forcausallm", {"rotary_interleaved": True}, "does not know: rotary_interleaved = True;"),
        ("mpt-forcausallm", {"norm_type": "rmsnorm"}, "does not know: norm_type = 'rmsnorm';"),
        ("mpt-forcausallm", {"ffn_config": {"ffn_type": "mptglu"}}, "ffn_config"),
        ("mpt-forcausallm", {"attn_config": {"alibi": True, "rope": True}}, "does not know: attn_config.rope = True;"),
        ("mpt-forcausallm", {"attn_config": {"attn_impl": "torch"}}, "does not say attn_config.alibi"),
        ("mpt-forcausallm", {"attn_config": ...}, "does not say attn_config.alibi"),
        ("mpt-forcausallm", {"no_bias": False}, "no_bias = False; only true is read"),
    ],
)
def test_what_does_not_fit_exactly_is_refused(copy: Copy, name: str, values: Json, said: str) -> None:
    directory = released(copy(name))
    configure(directory, **values)
    sentence = refusal(directory)
    assert said in sentence
    assert "auto_map" in sentence
    assert not (directory / "executed").exists()


#: of jina-embeddings-v2-base-en
JINA: Json = {
    "architectures": ["JinaBertForMaskedLM"],
    "attn_implementation": None,
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModelForMaskedLM": "jinaai/jina-bert-implementation--modeling_bert.JinaBertForMaskedLM",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    },
    "emb_pooler": "mean",
    "feed_forward_type": "geglu",
}
BERT_MAP = {"AutoConfig": "configuration_bert.BertConfig", "AutoModel": "modeling_bert.BertForMaskedLM"}


def test_a_known_name_for_another_model_is_refused(masked: Path) -> None:
    """Even where every tensor has BERT's name and shape."""
    configure(masked, **JINA)
    assert "configuration_bert.JinaBertConfig is not bert's, so that the checkpoint may compute something" in refusal(
        masked
    )
    configure(masked, architectures=["BertForMaskedLM"], auto_map=BERT_MAP)
    sentence = refusal(masked)
    assert "does not know: emb_pooler = 'mean', feed_forward_type = 'geglu';" in sentence
    configure(masked, emb_pooler=..., feed_forward_type=..., position_embedding_type="alibi")
    assert "position_embedding_type = 'alibi'" in refusal(masked)
    configure(masked, position_embedding_type="absolute")
    assert any("posexport's definition of bert" in remark for remark in read(masked).remarks)
    change(masked, lambda t: t.update({"bert.encoder.layer.0.mlp.gated_layers.weight": torch.ones(58, 20)}))
    sentence = refusal(masked)
    assert "are not used (bert.encoder.layer.0.mlp.gated_layers.weight)" in sentence
    assert "auto_map: configuration_bert.BertConfig" in sentence


def test_only_the_classes_of_models_and_configurations_matter(masked: Path) -> None:
    configure(masked, auto_map={"AutoTokenizer": ["tokenization_odd.Odd", None]})
    assert not any("auto_map" in remark for remark in read(masked).remarks)


def test_without_code_unknown_keys_are_as_before(masked: Path) -> None:
    configure(masked, emb_pooler="mean")
    assert read(masked).task == "fill-mask"
    assert json.loads((masked / "config.json").read_text())["emb_pooler"] == "mean"


def test_a_family_that_needed_no_code(copy: Copy) -> None:
    """By the same rule; embedders took such names for models whose tokens see later ones (gte-Qwen2, LLM2Vec)."""
    directory = copy("qwen2-forcausallm")
    before = read(directory)
    configure(directory, auto_map={"AutoModel": "modeling_qwen2.Qwen2Model"})
    assert torch.equal(logits(read(directory)), logits(before))
    configure(directory, is_causal=False)
    assert "is_causal = false: tokens see later ones" in refusal(directory)
    configure(directory, is_causal=..., auto_map={"AutoModel": "modeling_qwen.Qwen2Model"})
    assert "modeling_qwen.Qwen2Model is not qwen2's" in refusal(directory)
    configure(directory, auto_map={"AutoModel": "modeling_qwen2.Qwen2EncoderModel"}, architectures=["Qwen2ForCausalLM"])
    assert "is not qwen2's" in refusal(directory)
    configure(directory, auto_map={"AutoModel": "modeling_qwen2.Qwen2Model"}, architectures=["Qwen2EncoderModel"])
    assert "Qwen2EncoderModel is not qwen2's" in refusal(directory)
