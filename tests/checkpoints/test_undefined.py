"""Classes that a type has in transformers, and not in posexport's definition of it."""

import json
import shutil
from pathlib import Path

import pytest

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.errors import PosexportError

GOLDEN = Path(__file__).parents[1] / "golden"


def test_a_class_without_a_definition_is_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")
    from ci.through import tiny

    tiny.make(tmp_path / "wavlm", tiny.table()["wavlm-classes"])
    source = checkpoint_source(tmp_path / "wavlm", task=None, allow_pickle=False)
    assert (source.kind, source.task) == ("transformers", "audio-classification")
    assert "WavLMForSequenceClassification is converted through transformers" in source.remarks[0]
    # the definition has the states below the head
    features = checkpoint_source(tmp_path / "wavlm", task="features", allow_pickle=False)
    assert (features.kind, features.task) == ("huggingface", "features")


def test_without_transformers_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("makers", "defined"):
        monkeypatch.setattr(f"posexport.checkpoints.{module}.is_installed", lambda _: False)
    shutil.copytree(GOLDEN / "swin-model", tmp_path / "swin")
    config = json.loads((tmp_path / "swin/config.json").read_text())
    (tmp_path / "swin/config.json").write_text(json.dumps({**config, "architectures": ["SwinForMaskedImageModeling"]}))
    said = "which is no task here; choose --task out of .*; transformers' classes are converted with pip install"
    with pytest.raises(PosexportError, match=said):
        checkpoint_source(tmp_path / "swin", task=None, allow_pickle=False)
