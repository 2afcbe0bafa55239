"""Folders that versions 2 to 6 of sentence-transformers wrote (ci/lab/embedders/versions.py)."""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from checkpoints import configure, outputs, read

import posexport
from posexport.sources.source import Source
from tests.tolerances import agree

STORED = Path(__file__).parents[1] / "embedder_versions"
VERSIONS = sorted(path.name for path in STORED.iterdir())


#: this one writes its projections as pickles, which no bundle takes over
PICKLED = "2.7.0"


def model(version: str, task: str | None = None) -> Source:
    return read(STORED / version / "model", task, allow_pickle=version == PICKLED)


def test_they_are_of_five_versions() -> None:
    assert [name.partition(".")[0] for name in VERSIONS] == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_is_read_as_the_same_model(version: str) -> None:
    newest, source = model(VERSIONS[-1]), model(version)
    assert torch.equal(outputs(source)[1], outputs(newest)[1])
    assert source.text_rules is not None
    assert source.text_rules.prompts.pop("document", "") == ""
    assert msgspec.structs.replace(source.text_rules, prompts={}) == msgspec.structs.replace(
        newest.text_rules, prompts={}
    )
    assert (source.text_rules.max_length, source.text_rules.prompts) == (40, {"query": "Ba ce: "})
    weights = set() if version == PICKLED else {"2_Dense/model.safetensors"}
    for task in (None, "features"):
        assert {"2_Dense/config.json", *weights} <= set(model(version, task).files)


@pytest.mark.all
@pytest.mark.parametrize("version", VERSIONS)
def test_its_vectors_are_those_of_that_version(version: str, tmp_path: Path) -> None:
    posexport.convert(str(STORED / version / "model"), tmp_path / "b", target="cpu", verify=False, allow_pickle=True)
    session = posexport.load(tmp_path / "b")
    with np.load(STORED / version / "answers.npz") as stored:
        answers = dict(stored)
    texts = json.loads((STORED / version / "texts.json").read_text())
    agree(session.encode(texts), answers["plain"], "model in float32", np.float32)
    agree(session.encode(texts, prompt_name="query"), answers["query"], "model in float32", np.float32)
    assert np.abs(session.encode(texts, prompt_name="query") - answers["plain"]).max() > 0.01


def test_older_names_of_the_rules_beside_the_transformer(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(STORED / "2.7.0" / "model", folder)
    configure(folder, "sentence_bert_config.json", max_seq_length=17)
    (folder / "sentence_bert_config.json").rename(folder / "sentence_roberta_config.json")
    source = read(folder, allow_pickle=True)
    assert source.text_rules is not None
    assert source.text_rules.max_length == 17
    assert "sentence_roberta_config.json" in source.files
