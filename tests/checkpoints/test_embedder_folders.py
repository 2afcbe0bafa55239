"""Directories with a modules.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import outputs, read, refusal

from tests.tolerances import agree

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def sentences(directory: Path, modules: Any, **pooling: Any) -> None:
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    content = {"word_embedding_dimension": 20, "pooling_mode_max_tokens": False} | pooling
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_sentence_embeddings(bert: Path, mode: str, normalise: bool) -> None:
    states = outputs(read(bert))[0]
    key = "pooling_mode_mean_tokens" if mode == "mean" else "pooling_mode_cls_token"
    sentences(bert, [TRANSFORMER, POOLING, NORMALIZE][: 3 if normalise else 2], **{key: True})
    (bert / "sentence_bert_config.json").write_text('{"max_seq_length": 17, "do_lower_case": false}')
    source = read(bert)
    assert source.task == "sentence-embedding"
    assert source.promises.reads_first_token == (mode == "cls")
    assert {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"} <= set(source.files)
    assert source.text_rules is not None
    assert source.text_rules.max_length == 17
    wanted = states.mean(1) if mode == "mean" else states[:, 0]
    wanted = wanted / wanted.norm(dim=-1, keepdim=True) if normalise else wanted
    found = outputs(source)
    assert torch.equal(found[0], states)
    agree(found[1], wanted, "rounded", found[1].dtype)
    assert read(bert, "features").task == "features"


def test_a_transformer_in_a_folder_of_its_own(bert: Path) -> None:
    states = outputs(read(bert))[0]
    (bert / "0_Transformer").mkdir()
    for name in ("config.json", "model.safetensors"):
        (bert / name).rename(bert / "0_Transformer" / name)
    sentences(bert, [TRANSFORMER | {"path": "0_Transformer"}, POOLING], pooling_mode_mean_tokens=True)
    source = read(bert)
    assert torch.equal(outputs(source)[0], states)
    assert source.files["config.json"].parent.name == "0_Transformer"


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        ({}, {}, "is not a list of modules"),
        ([TRANSFORMER], {}, "only Transformer, Pooling"),
        (
            [TRANSFORMER, POOLING, {**NORMALIZE, "type": "sentence_transformers.models.LSTM"}],
            {},
            "lists Transformer, Pooling, LSTM",
        ),
        ([TRANSFORMER, {**POOLING, "type": "custom.Pooling"}], {}, "code from a checkpoint is never executed"),
        (
            [{**TRANSFORMER, "type": "sentence_transformers.models.StaticEmbedding"}],
            {},
            "StaticEmbedding, which is read from the folders of model2vec only",
        ),
        ([TRANSFORMER, {**POOLING, "path": "../outside"}], {}, "points outside the directory"),
        ([TRANSFORMER | {"path": "/"}, POOLING], {"pooling_mode_mean_tokens": True}, "points outside the directory"),
        ([TRANSFORMER, {**POOLING, "path": "absent"}], {}, "has no absent/config.json"),
        ([TRANSFORMER, POOLING], {}, "chooses no pooling"),
        ([TRANSFORMER, POOLING], {"pooling_mode_median_tokens": True}, "chooses pooling_mode_median_tokens"),
        (
            [TRANSFORMER, POOLING],
            {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 21},
            "word_embedding_dimension = 21",
        ),
    ],
)
def test_other_modules_are_refused(bert: Path, modules: Any, pooling: dict[str, Any], said: str) -> None:
    sentences(bert, modules, **pooling)
    assert said in refusal(bert)


def test_sentence_embedding_without_modules(bert: Path) -> None:
    assert "needs a modules.json of sentence-transformers that says how, and there is none" in refusal(
        bert, "sentence-embedding"
    )


#: what sentence-transformers 6.2.0 writes (1_Pooling, sentence_bert_config.json, modules.json)
SIX = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {
        "idx": 1,
        "name": "1",
        "path": "1_Pooling",
        "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    },
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"},
]
_FLAG = {"mean": "mean_tokens", "cls": "cls_token"}
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}


def six(directory: Path, mode: Any, **more: Any) -> None:
    """The files beside a transformer, with version 6's spellings."""
    (directory / "modules.json").write_text(json.dumps(SIX))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    content = {"embedding_dimension": 20, "pooling_mode": mode, "include_prompt": True} | more
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(content))
    (directory / "sentence_bert_config.json").write_text(
        json.dumps(
            {
                "transformer_task": "feature-extraction",
                "modality_config": {"text": TEXT},
                "module_output_name": "token_embeddings",
            }
        )
    )


@pytest.mark.parametrize("mode", ["mean", "cls", ["mean"]])
def test_the_spellings_of_version_6(bert: Path, mode: str | list[str]) -> None:
    pooling = mode if isinstance(mode, str) else mode[0]
    sentences(bert, [TRANSFORMER, POOLING, NORMALIZE], **{f"pooling_mode_{_FLAG[pooling]}": True})
    before = outputs(read(bert))
    six(bert, mode)
    source = read(bert)
    assert source.task == "sentence-embedding"
    assert source.promises.reads_first_token == (pooling == "cls")
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(source), strict=True))


@pytest.mark.parametrize(
    ("mode", "more", "said"),
    [
        ("median", {}, "says pooling_mode = 'median'; supported are cls, max, mean"),
        (["mean", "median"], {}, "says pooling_mode = ['mean', 'median']; supported"),
        ([], {}, "says pooling_mode = []; supported"),
        ("mean", {"pooling_mode_cls_token": True}, "says pooling_mode = mean and sets pooling_mode_cls_token"),
        ("mean", {"embedding_dimension": 21}, "says embedding_dimension = 21; config.json says hidden_size = 20"),
        (7, {}, "says pooling_mode = 7"),
        ({"mean": 1}, {}, "says pooling_mode = {'mean': 1}"),
    ],
)
def test_other_poolings_of_version_6_are_refused(bert: Path, mode: Any, more: dict[str, Any], said: str) -> None:
    six(bert, mode, **more)
    assert said in refusal(bert)


def test_a_pooling_of_something_else_than_the_last_states_is_refused(bert: Path) -> None:
    six(bert, "mean")
    path = bert / "sentence_bert_config.json"
    for change in (
        {"transformer_task": "fill-mask"},
        {"modality_config": {"text": TEXT | {"method_output_name": "pooler_output"}}},
        {"modality_config": {"image": TEXT}},
    ):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        assert "only the pooling of the last_hidden_state of texts is read" in refusal(bert)
        six(bert, "mean")
