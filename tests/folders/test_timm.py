"""timm's folders, which name no type of transformers: what they are taken for, and what is missing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posexport.base.system import extras
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.errors import PosexportError
from posexport.through import refusals
from posexport.through.pictures import trained_size

STATED = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": [3, 20, 30]}}


def config_of(folder: Path, **stated: Any) -> Config:
    (folder / "config.json").write_text(json.dumps(stated))
    return Config(Directory(folder))


@pytest.mark.parametrize(("classes", "name"), [(0, "TimmWrapperModel"), (7, "TimmWrapperForImageClassification")])
def test_the_type_and_the_class(tmp_path: Path, classes: int, name: str) -> None:
    config = config_of(tmp_path, num_classes=classes, **STATED)
    assert (config.text("model_type"), config.architecture()) == ("timm_wrapper", name)


def test_a_type_that_is_stated_stays(tmp_path: Path) -> None:
    assert config_of(tmp_path, model_type="vit", **STATED).text("model_type") == "vit"


def test_the_trained_size_is_pretrained_cfgs() -> None:
    assert trained_size(SimpleNamespace(**STATED)) == (20, 30)


def test_timm_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda name: name != "timm")
    with pytest.raises(PosexportError, match=r"is of timm, which needs timm, .*pip install 'posexport\[timm\]'"):
        refusals.check(config_of(tmp_path, **STATED))
