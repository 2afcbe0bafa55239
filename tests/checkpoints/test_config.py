"""Odd, broken and hostile config.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import Tensors, change, configure, outputs, read, refusal, same

from posexport.checkpoints.directory import JSON_BYTES
from posexport.checkpoints.families.closest import CLOSEST
from posexport.checkpoints.families.registry import FAMILIES
from posexport.sources.source import Source


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b'{"layer_norm_eps": NaN}', "not valid JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[]", "holds a list"),
        (b"3", "holds a int"),
        (b'{"a": ' * 40 + b"1" + b"}" * 40, "nested deeper than 32"),
        (b"[" * 200_000, "nested deeper than 32"),
        (b'{"a": "' + b"x" * JSON_BYTES + b'"}', "more than the 10000000"),
    ],
)
def test_odd_json(bert: Path, content: bytes, said: str) -> None:
    (bert / "config.json").write_bytes(content)
    assert said in refusal(bert)


@pytest.mark.usefixtures("without_transformers")
def test_unknown_families_name_the_known_and_the_closest(bert: Path) -> None:
    configure(bert, model_type="gpt_neox_japanese")
    sentence = refusal(bert)
    assert "the closest is gpt_neox" in sentence
    for family in ("bert", "albert", "electra", "megatron-bert", "ernie", "camembert", "roberta-prelayernorm"):
        assert family in sentence
    configure(bert, model_type=...)
    assert "has no model_type" in refusal(bert)


@pytest.mark.usefixtures("without_transformers")
@pytest.mark.parametrize(
    ("model_type", "family"),
    [
        ("hubert", "wavlm"),
        ("mixtral", "mistral"),
        ("dinov2", "vit"),
        ("codegen", "gptj"),
        ("RefinedWebModel", "falcon"),
        ("Deberta_V2", "deberta-v2"),
        # spelt like a family, and another model
        *((name, None) for name in ("llava", "mamba", "idefics", "clip", "flaubert", "mobilebert", "t5gemma", "mpt2")),
        *((name, None) for name in ("visual_bert", "squeezebert", "bert-generation", "gemma3n", "rwkv", "xlm", "zzz")),
    ],
)
def test_the_closest_is_by_what_a_model_computes(bert: Path, model_type: str, family: str | None) -> None:
    configure(bert, model_type=model_type)
    sentence = refusal(bert)
    assert ("; the closest is " in sentence) == (family is not None)
    assert family is None or sentence.endswith(f"; the closest is {family}")


def test_relatives_are_of_families_and_none_themselves() -> None:
    assert set(CLOSEST.values()) <= set(FAMILIES)
    assert not set(CLOSEST) & set(FAMILIES)


def test_code_in_a_checkpoint_is_refused_and_not_executed(bert: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (bert / "modeling.py").write_text(f"open({str(mark)!r}, 'w')")
    configure(bert, auto_map={"AutoModel": "modeling.Model"}, model_type="unheard-of")
    assert "auto_map" in refusal(bert)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"position_embedding_type": "rotary"}, "known: absolute, relative_key, relative_key_query"),
        ({"position_embedding_type": None}, "must be a string"),
        ({"is_decoder": True}, "only absolute is read: a decoder's positions"),
        ({"architectures": ["BertLMHeadModel"]}, "set is_decoder to true if it was trained as a decoder"),
        ({"hidden_act": "xielu"}, "activation 'xielu' has weights of its own"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_attention_heads": 3}, "the heads must divide the size"),
        ({"hidden_size": ...}, "has no hidden_size"),
        ({"max_position_embeddings": ...}, "has no max_position_embeddings"),
        ({"hidden_size": -20}, "hidden_size = -20"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ({"intermediate_size": 10**18}, "intermediate_size"),
        ({"intermediate_size": 29.0}, "intermediate_size = 29.0"),
        ({"intermediate_size": "29"}, "intermediate_size = '29'"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"max_position_embeddings": None}, "max_position_embeddings = None"),
        ({"layer_norm_eps": -1e-12}, "layer_norm_eps"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps"),
        ({"hidden_act": "mystery"}, "unknown activation 'mystery'"),
        ({"hidden_act": 3}, "hidden_act = 3"),
        ({"pad_token_id": 43}, "pad_token_id = 43"),
        ({"pad_token_id": -1}, "pad_token_id = -1"),
        ({"num_hidden_layers": 3}, "needed ones are not in the file"),
        ({"num_hidden_layers": 1}, "tensors of the file are not used"),
    ],
)
def test_odd_values(bert: Path, values: dict[str, Any], said: str) -> None:
    configure(bert, **values)
    assert said in refusal(bert)


def test_defaults_of_transformers(copy: Callable[[str], Path]) -> None:
    """Old files lack the newer keys; 4.57.6 then takes its classes' values."""
    directory = copy("megatron-bert-absolute")
    before = read(directory)
    for key in ("layer_norm_eps", "type_vocab_size", "pad_token_id", "hidden_act", "position_embedding_type"):
        configure(directory, **{key: ...})
    assert same(before, read(directory))
    configure(directory, pad_token_id=None)
    assert same(before, read(directory))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("roberta-absolute", {"pad_token_id": None}, "pad_token_id = None"),
        ("xglm-forcausallm", {"pad_token_id": 23}, "pad_token_id = 23; it must be a whole number from 0 to 22"),
        ("bert-absolute", {"is_decoder": True}, "with that fill-mask is not read, choose --task text-generation"),
        ("albert-absolute", {"inner_group_num": 2}, "albert_layer_groups.0.albert_layers.1."),
        ("albert-absolute", {"num_hidden_groups": 3}, "must divide"),
        ("roberta-absolute", {"pad_token_id": 40}, "positions start at pad_token_id + 1"),
        ("electra-absolute", {"embedding_size": 20}, "electra.embeddings_project.weight"),
        ("ernie-absolute", {"use_task_id": False}, "ernie.embeddings.task_type_embeddings.weight"),
        ("ernie-relative_key_query", {"use_task_id": True}, "ernie.embeddings.task_type_embeddings.weight"),
        ("ernie-absolute", {"task_type_vocab_size": 4}, "task_type_embeddings.weight is [3, 20], needed [4, 20]"),
        ("bert-relative_key_query", {"id2label": {"0": "a"}}, "classifier.weight is [3, 20], needed [1, 20]"),
        ("bert-relative_key_query", {"id2label": []}, "id2label"),
        ("roformer-formaskedlm", {"rotary_value": True}, "sets rotary_value"),
        ("roformer-formaskedlm", {"num_attention_heads": 20}, "heads of size 1"),
        ("roformer-formaskedlm", {"num_attention_heads": 2}, "embed_positions.weight is [33, 4], needed [33, 10]"),
        ("roformer-formaskedlm", {"max_position_embeddings": 34}, "is [33, 4], needed [34, 4]"),
        ("roformer-formaskedlm", {"embedding_size": 12}, "embeddings_project.weight"),
        ("nezha-formaskedlm", {"max_relative_position": 0}, "max_relative_position = 0"),
        ("mpnet-formaskedlm", {"relative_attention_num_buckets": 16}, "into 32 buckets whatever it says"),
        ("mpnet-formaskedlm", {"pad_token_id": 0}, "counted by the padding token 1"),
        ("mpnet-formaskedlm", {"max_position_embeddings": 2}, "positions start at 2"),
        ("mpnet-formaskedlm", {"num_attention_heads": 4}, "relative_attention_bias.weight is [32, 5], needed [32, 4]"),
        ("deberta-formaskedlm", {"relative_attention": False}, "relative_attention = false; the terms that are read"),
        ("deberta-formaskedlm", {"position_biased_input": ...}, "(deberta.embeddings.position_embeddings.weight)"),
        ("deberta-formaskedlm", {"talking_head": True}, "talking_head = True; only false is read"),
        ("deberta-formaskedlm", {"legacy": False}, "lm_predictions.lm_head.dense"),
        ("deberta-formaskedlm", {"pos_att_type": "c2p"}, "pos_q_proj"),
        ("deberta-formaskedlm", {"pos_att_type": None}, "pos_proj"),
        ("deberta-formaskedlm", {"pos_att_type": "p2p"}, "pos_att_type = 'p2p'"),
        ("deberta-formaskedlm", {"pos_att_type": 3}, "pos_att_type = 3"),
        ("deberta-formaskedlm", {"conv_kernel_size": 3}, "only 0 is read: version 1 has no convolution"),
        ("deberta-formaskedlm", {"embedding_size": 12}, "embedding_size = 12"),
        ("deberta-formaskedlm", {"pooler_hidden_act": "tanh"}, "pooler_hidden_act = 'tanh'"),
        ("deberta-formaskedlm", {"attention_head_size": 5}, "attention_head_size = 5"),
        ("deberta-formaskedlm", {"max_relative_positions": 9}, "rel_embeddings.weight is [66, 20], needed [18, 20]"),
        ("deberta-v2-formaskedlm", {"conv_kernel_size": 3}, "deberta.encoder.conv.conv.weight"),
        ("deberta-v2-formaskedlm", {"conv_kernel_size": 4}, "needs an odd kernel and groups that divide 20 channels"),
        ("deberta-v2-formaskedlm", {"norm_rel_ebd": "rms"}, "norm_rel_ebd = 'rms'"),
        ("deberta-v2-formaskedlm", {"layer_norm_eps": 1e-12}, "layer_norm_eps = 1e-12"),
        ("deberta-v2-formaskedlm", {"share_att_key": False}, "pos_key_proj.weight"),
        ("deberta-v2-formaskedlm", {"position_buckets": 2}, "position_buckets and max_relative_positions do not fit"),
        ("deberta-v2-forsequenceclassification", {"share_att_key": True}, "pos_key_proj.weight"),
        ("distilbert-formaskedlm", {"dim": ...}, "has no dim"),
        ("distilbert-formaskedlm", {"dim": 21}, "dim = 21, n_heads = 5; the heads must divide"),
        ("distilbert-formaskedlm", {"n_heads": 3}, "dim = 20, n_heads = 3; the heads must divide"),
        (
            "distilbert-formaskedlm",
            {"n_layers": 1},
            "16 tensors of the file are not used (distilbert.transformer.layer.1",
        ),
        ("distilbert-formaskedlm", {"n_layers": 3}, "distilbert.transformer.layer.2.attention.q_lin.weight"),
        ("distilbert-formaskedlm", {"hidden_dim": 18}, "ffn.lin1.weight is [17, 20], needed [18, 20]"),
        ("distilbert-formaskedlm", {"hidden_dim": "17"}, "hidden_dim = '17'"),
        ("distilbert-formaskedlm", {"activation": "mystery"}, "unknown activation 'mystery'"),
        ("distilbert-formaskedlm", {"activation": 3}, "activation = 3"),
        ("distilbert-formaskedlm", {"sinusoidal_pos_embds": "no"}, "sinusoidal_pos_embds = 'no'"),
        ("distilbert-formaskedlm", {"max_position_embeddings": 34}, "is [33, 20], needed [34, 20]"),
        ("distilbert-formaskedlm", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("distilbert-formaskedlm", {"architectures": ["DistilBertForMultipleChoice"]}, "DistilBertForMultipleChoice"),
        ("distilbert-formaskedlm", {"tie_word_embeddings": False}, "vocab_projector.weight"),
        ("esm-formaskedlm", {"position_embedding_type": "relative_key"}, "of ESM rotary and absolute"),
        ("esm-formaskedlm", {"is_folding_model": True}, "sets is_folding_model"),
        ("esm-formaskedlm", {"mask_token_id": 43}, "mask_token_id = 43"),
        ("esm-formaskedlm", {"mask_token_id": None}, "mask_token_id = None"),
        ("esm-formaskedlm", {"emb_layer_norm_before": True}, "esm.embeddings.layer_norm.weight"),
        ("esm-formaskedlm", {"num_attention_heads": 2}, "inv_freq is [2], needed [5]"),
    ],
)
def test_options_of_families(copy: Callable[[str], Path], name: str, values: dict[str, Any], said: str) -> None:
    directory = copy(name)
    configure(directory, **values)
    assert said in refusal(directory)


def test_a_rotation_that_the_file_contradicts_is_refused(copy: Callable[[str], Path]) -> None:
    """RoFormer's table is a formula's: a file without it means the same, one with another table is another model."""
    directory = copy("roformer-formaskedlm")
    before = read(directory)
    name = "roformer.encoder.embed_positions.weight"

    def bend(tensors: Tensors) -> None:
        tensors[name][7, 1] += 0.02

    change(directory, lambda tensors: tensors.update({name: tensors[name].bfloat16()}))
    assert same(before, read(directory))
    change(directory, bend)
    assert f"{name} differs from the family's formula" in refusal(directory)
    change(directory, lambda tensors: tensors.pop(name))
    assert same(before, read(directory))


def test_distilbert_reads_the_table_that_the_file_holds(copy: Callable[[str], Path]) -> None:
    """With ``sinusoidal_pos_embds`` too: transformers loads it, and many were trained further."""
    directory = copy("distilbert-fortokenclassification")
    table = "distilbert.embeddings.position_embeddings.weight"
    before = read(directory)
    configure(directory, sinusoidal_pos_embds=False)
    assert same(before, read(directory))
    configure(directory, sinusoidal_pos_embds=True, layer_norm_eps=0.5, position_embedding_type="relative_key")
    assert same(before, read(directory))  # keys that transformers does not read
    change(directory, lambda tensors: tensors[table][2].mul_(-1))
    assert not same(before, read(directory))
    change(directory, lambda tensors: tensors.pop(table))
    assert f"1 needed ones are not in the file ({table})" in refusal(directory)


def test_distilbert_under_other_names(copy: Callable[[str], Path]) -> None:
    """The spellings that transformers takes for the same, the encoder alone, and an untied head as it is saved."""
    directory = copy("distilbert-formaskedlm")
    before = read(directory)
    configure(directory, dim=..., hidden_size=20, n_heads=..., num_attention_heads=5, n_layers=..., num_hidden_layers=2)
    assert same(before, read(directory))
    change(
        directory,
        lambda t: t.update({"vocab_projector.weight": t["distilbert.embeddings.word_embeddings.weight"].clone()}),
    )
    configure(directory, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
    assert same(before, read(directory))
    states = outputs(read(directory, "features"))[0]

    def alone(tensors: Tensors) -> None:
        for name in list(tensors):
            value = tensors.pop(name)
            if name.startswith("distilbert."):
                tensors[name.removeprefix("distilbert.")] = value

    change(directory, alone)
    configure(directory, architectures=["DistilBertModel"])
    assert torch.equal(outputs(read(directory))[0], states)


GOLDEN = Path(__file__).parent.parent / "golden"
#: one file of each kind of model that says what its normalisations add to a variance
SAYS_EPS = {
    json.loads(path.read_text())["model_type"]: (path.parent.name, key)
    for path in sorted(GOLDEN.glob("*/config.json"), reverse=True)
    for key in json.loads(path.read_text())
    if key.endswith(("_eps", "_epsilon"))
}


#: where the file says another value than the class, as released ones do: the class's
OF_CLASS = dict.fromkeys(("roberta", "xlm-roberta", "camembert", "longformer", "esm"), 1e-12)
OF_CLASS["wav2vec2-conformer"] = 1e-5


@pytest.mark.parametrize("kind", SAYS_EPS)
def test_a_file_that_does_not_say_eps_has_that_of_transformers(kind: str, copy: Callable[[str], Path]) -> None:
    """Files of `ci/golden` have the values of transformers' classes, with few exceptions."""
    name, key = SAYS_EPS[kind]
    directory = copy(name)
    said = json.loads((directory / "config.json").read_text())[key]
    before = all_eps(read(directory))
    configure(directory, **{key: ...})
    assert all_eps(read(directory)) == [OF_CLASS.get(kind, said) if each == said else each for each in before]
    assert said in before


def all_eps(source: Source) -> list[float]:
    return [part.eps for part in source.module.modules() if isinstance(getattr(part, "eps", None), float)]
