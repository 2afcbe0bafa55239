"""WebGPU without a GPU, where ci/lab/providers/setup has made it: answers, and what is refused beyond a table."""

import json
from pathlib import Path

import numpy as np
import pytest

from ci.lab.providers import run
from ci.lab.providers.models import Model
from posexport.run.providers import LEVELS
from tests.tolerances import allowed

READY = Path(run.python("webgpu")).exists() and (run.CACHE / "clients" / "chromium" / "libvulkan.so.1").exists()
pytestmark = [pytest.mark.all, pytest.mark.skipif(not READY, reason="ci/lab/providers/setup webgpu")]
SIZES = ("layers=1", "hidden=20", "feedforward=37", "vocab=61")


@pytest.mark.parametrize("name", ["encoder-absolute", "decoder-absolute"])
def test_the_guard_holds_at_every_level(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """WebGPU's Gather gives zeros beyond a table."""
    monkeypatch.setattr(run, "BUNDLES", tmp_path)
    row = run.verified(Model(name, name, name, settings=(*SIZES, "max_positions=20")), "webgpu", None, ())
    assert row["right"], row["why"]
    assert row["strays"] == []
    assert row["refused"] == 1
    assert row["error"] < allowed("model in float32", np.float32)
    assert row["guard"] == {level: [] for level in LEVELS}


def test_what_is_wrong_there_is_located(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SwiftShader's cosine has an error of 2^-13: a driver that is better passes."""
    monkeypatch.setattr(run, "BUNDLES", tmp_path)
    row = run.verified(Model("rope", "encoder-rope", "encoder", settings=SIZES), "webgpu", None, ())
    assert row["right"] or "(Cos), in encoder.groups.0.attention" in row["why"]


def test_the_table_has_every_row_that_is_made() -> None:
    rows = json.loads(run.RESULTS.read_text())["webgpu"]
    assert set(rows) == {model.name for model in run.models()}
