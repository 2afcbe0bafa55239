"""The checkpoint decides: what is not used or not there is refused, with both sides listed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, Tensors, change, configure, outputs, read, refusal, same
from safetensors.torch import load_file

from tests.tolerances import agree


def test_a_relative_checkpoint_read_as_absolute_is_refused(bert: Path) -> None:
    """What transformers 5 does without an error."""
    configure(bert, position_embedding_type="absolute")
    sentence = refusal(bert)
    assert "2 tensors of the file are not used" in sentence
    assert "encoder.layer.0.attention.self.distance_embedding.weight" in sentence


def test_an_absolute_checkpoint_read_as_relative_is_refused(masked: Path) -> None:
    configure(masked, position_embedding_type="relative_key_query")
    sentence = refusal(masked)
    assert (
        "2 needed ones are not in the file (bert.encoder.layer.0.attention.self.distance_embedding.weight" in sentence
    )


def test_both_sides_are_listed_with_counts(bert: Path) -> None:
    def edit(tensors: Tensors) -> None:
        tensors.update({f"encoder.extra.{i}": torch.zeros(2) for i in range(7)})
        del tensors["encoder.layer.1.output.dense.bias"]
        tensors["embeddings.LayerNorm.weight"] = torch.ones(21)

    change(bert, edit)
    sentence = refusal(bert)
    assert "7 tensors of the file are not used (encoder.extra.0, " in sentence
    assert "and 2 more)" in sentence
    assert "1 needed ones are not in the file (encoder.layer.1.output.dense.bias)" in sentence
    assert "1 have another shape (embeddings.LayerNorm.weight is [21], needed [20])" in sentence


def test_sizes_that_the_weights_do_not_have(bert: Path) -> None:
    configure(bert, max_position_embeddings=34, vocab_size=44)
    sentence = refusal(bert)
    assert "embeddings.word_embeddings.weight is [43, 20], needed [44, 20]" in sentence
    assert "distance_embedding.weight is [65, 4], needed [67, 4]" in sentence


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "ernie", "megatron-bert"])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_the_absolute_table_beside_relative_positions_has_no_effect(
    copy: Callable[[str], Path], family: str, kind: str
) -> None:
    directory = copy(f"{family}-{kind}")
    before = read(directory, "features")
    assert any("table of absolute positions" in remark for remark in before.remarks)
    stem = "embeddings.position_embeddings.weight"
    changed = []

    def scramble(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(stem)]:
            tensors[name] = torch.randn(tensors[name].shape)
            changed.append(name)

    def remove(tensors: Tensors) -> None:
        tensors.pop(changed[0])

    change(directory, scramble)
    assert len(changed) == 1
    assert same(before, read(directory, "features"))
    change(directory, remove)
    assert same(before, read(directory, "features"))


def test_harmless_buffers_and_pooler(bert: Path) -> None:
    before = read(bert)
    assert [spec.name for spec in before.outputs] == ["last_hidden_state", "pooler_output"]
    change(bert, lambda t: t.update({"embeddings.position_ids": torch.arange(33)[None]}))
    change(bert, lambda t: t.update({"embeddings.token_type_ids": torch.zeros(1, 33, dtype=torch.int64)}))
    change(bert, lambda t: [t.pop(f"pooler.dense.{leaf}") for leaf in ("weight", "bias")])
    after = read(bert)
    assert [spec.name for spec in after.outputs] == ["last_hidden_state"]
    assert torch.equal(outputs(before)[0], outputs(after)[0])
    assert not any("pooler" in remark or "ids" in remark for remark in after.remarks)


def test_a_known_head_of_another_task_is_harmless_an_unknown_one_is_not(masked: Path) -> None:
    change(masked, lambda t: t.update({"qa_outputs.weight": torch.ones(2, 20), "qa_outputs.bias": torch.ones(2)}))
    for task in (None, "fill-mask", "question-answering", "features"):
        source = read(masked, task)
        assert source.task == (task or "fill-mask")
        assert bool([r for r in source.remarks if "question-answering head" in r]) == (task != "question-answering")
    change(masked, lambda t: t.update({"span_outputs.weight": torch.ones(2, 20)}))
    for task in (None, "fill-mask", "question-answering", "features"):
        assert "1 tensors of the file are not used (span_outputs.weight)" in refusal(masked, task)


@pytest.mark.parametrize("task", [None, "fill-mask"])
def test_what_is_unknown_in_the_head_that_is_used_is_refused(masked: Path, task: str | None) -> None:
    change(masked, lambda t: t.update({"cls.predictions.gate.weight": torch.ones(20, 20)}))
    assert "1 tensors of the file are not used (cls.predictions.gate.weight)" in refusal(masked, task)
    assert any("fill-mask head (6 tensors)" in remark for remark in read(masked, "features").remarks)


def as_bert_base_uncased(tensors: Tensors) -> None:
    """The names in the file of bert-base-uncased: old ones of norms, a pooler and both heads of the pre-training."""
    for name in [name for name in tensors if ".LayerNorm." in name]:
        leaf = {"weight": "gamma", "bias": "beta"}[name.rpartition(".")[2]]
        tensors[f"{name.rpartition('.')[0]}.{leaf}"] = tensors.pop(name)
    tensors["bert.pooler.dense.weight"] = torch.linspace(-1, 1, 400).view(20, 20)
    tensors["bert.pooler.dense.bias"] = torch.linspace(-1, 1, 20)
    tensors["cls.seq_relationship.weight"] = torch.ones(2, 20)
    tensors["cls.seq_relationship.bias"] = torch.ones(2)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForPreTraining"])
@pytest.mark.parametrize("task", [None, "fill-mask", "features", "sentence-embedding"])
def test_the_layout_of_bert_base_uncased(masked: Path, architecture: str, task: str | None) -> None:
    before = read(masked, "features" if task == "sentence-embedding" else task)
    change(masked, as_bert_base_uncased)
    configure(masked, architectures=[architecture], gradient_checkpointing=False)
    if task == "sentence-embedding":
        kinds = ("Transformer", "Pooling")
        modules = [{"path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
                   for i, kind in enumerate(kinds)]  # fmt: skip
        (masked / "modules.json").write_text(json.dumps(modules))
        (masked / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 20, "pooling_mode_mean_tokens": True}
        (masked / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    source = read(masked, task)
    assert torch.equal(outputs(source)[0], outputs(before)[0])
    assert "not used: the next-sentence head (2 tensors)" in source.remarks
    pooled = task == "features"
    assert ("not used: the pooler (2 tensors)" in source.remarks) == (not pooled)
    assert ("pooler_output" in [spec.name for spec in source.outputs]) == pooled


def test_cross_attention_is_refused_by_file_and_key(copy: Callable[[str], Path]) -> None:
    directory = copy("gpt2-lmheadmodel")
    configure(directory, add_cross_attention=True)
    sentence = refusal(directory)
    assert f"{directory}/config.json sets add_cross_attention: its layers also attend to another model" in sentence
    assert "encoder families" not in sentence
    configure(directory, add_cross_attention=...)
    change(directory, lambda t: t.update({"transformer.h.0.crossattention.c_attn.weight": torch.ones(20, 40)}))
    assert "check model_type, add_cross_attention and sizes in config.json" in refusal(directory)


def test_a_task_whose_head_is_not_in_the_file(masked: Path) -> None:
    sentence = refusal(masked, "sequence-classification")
    assert "4 needed ones are not in the file (bert.pooler.dense.weight, bert.pooler.dense.bias, classifier" in sentence
    assert "fill-mask" in refusal(masked, "dancing")


def test_pretraining_counts_as_fill_mask_except_for_electra(masked: Path, tmp_path: Path) -> None:
    before = read(masked)
    configure(masked, architectures=["BertForPreTraining"])
    change(masked, lambda t: t.update({"cls.seq_relationship.weight": torch.ones(2, 20)}))
    source = read(masked)
    assert source.task == "fill-mask"
    assert any("next-sentence head" in remark for remark in source.remarks)
    assert same(before, source)

    electra = tmp_path / "electra"
    shutil.copytree(GOLDEN / "electra-absolute", electra)
    configure(electra, architectures=["ElectraForPreTraining"])
    assert read(electra).task == "features"


def test_architectures(masked: Path) -> None:
    configure(masked, architectures=...)
    source = read(masked)
    assert source.task == "features"
    assert any("architectures" in remark for remark in source.remarks)
    for name in ("BertForMultipleChoice", "Custom"):
        configure(masked, architectures=[name])
        assert name in refusal(masked)
    configure(masked, architectures=["BertLMHeadModel"])
    assert "is_decoder = false" in refusal(masked)
    configure(masked, architectures="BertModel")
    assert "must be a list" in refusal(masked)


def test_tied_and_untied_decoders(masked: Path) -> None:
    tied = read(masked)
    decoder = "cls.predictions.decoder.weight"
    change(masked, lambda t: t.update({decoder: t["bert.embeddings.word_embeddings.weight"].clone()}))
    change(masked, lambda t: t.update({"cls.predictions.decoder.bias": t["cls.predictions.bias"].clone()}))
    assert same(tied, read(masked))
    assert len(list(tied.module.parameters())) == len(list(read(masked).module.parameters()))

    change(masked, lambda t: t[decoder].mul_(2))
    sentence = refusal(masked)
    assert decoder in sentence
    assert "differ" in sentence
    configure(masked, tie_word_embeddings=False)
    untied = read(masked)
    bias = load_file(masked / "model.safetensors")["cls.predictions.bias"]
    agree(outputs(untied)[0], 2 * outputs(tied)[0] - bias, "model in float32", np.float32)

    change(masked, lambda t: t["cls.predictions.decoder.bias"].add_(1))
    assert "cls.predictions.decoder.bias are one weight here, and differ" in refusal(masked)
    change(masked, lambda t: t.pop(decoder))
    assert "1 needed ones are not in the file (cls.predictions.decoder.weight)" in refusal(masked)
