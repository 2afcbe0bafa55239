"""The steps of docs/contributing.md: a family and a lowering are one object each; an encoding is in test_convert.py."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import posexport
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.checkpoints.families import decoder, gptj
from posexport.checkpoints.families.registry import FAMILIES
from posexport.graph.lowering import plan
from posexport.graph.lowering.formula import Formula

GPTJ = Path(__file__).parents[1] / "golden" / "gptj-forcausallm"


def test_a_family_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = decoder.family(
        "gptj-like",
        gptj._build,
        prefix="transformer",
        roots=("wte.", "h.", "ln_f."),
        spellings=gptj.GPTJ.spellings,
    )
    monkeypatch.setitem(FAMILIES, fresh.model_type, fresh)
    shutil.copytree(GPTJ, tmp_path / "checkpoint")
    config = json.loads((GPTJ / "config.json").read_text()) | {"model_type": "gptj-like"}
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(config))
    like, original = (
        checkpoint_source(path, task=None, allow_pickle=False) for path in (tmp_path / "checkpoint", GPTJ)
    )
    assert like.task == original.task == "text-generation"
    weights = dict(original.module.named_parameters())
    assert weights
    assert all(torch.equal(weights[name], tensor) for name, tensor in like.module.named_parameters())


@pytest.mark.all
def test_a_lowering_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(Formula):
        """The formula under another name."""

        name = "plain"
        why_not_preferred = "it is a test's"

    attention = replace(plan.ATTENTION, lowerings=(*plan.ATTENTION.lowerings, Plain()))
    monkeypatch.setattr(plan, "FAMILIES", [attention, *plan.FAMILIES[1:]])
    settings = {"layers": 1, "hidden": 20, "heads": 5, "feedforward": 17}
    done = posexport.convert("encoder-alibi", tmp_path / "plain", settings=settings, lowering="plain", lengths=[5])
    assert done.good
    assert done.manifest is not None
    assert {spec.lowering for spec in done.manifest.lowerings.values()} == {"plain"}
    usual = posexport.convert("encoder-alibi", tmp_path / "usual", settings=settings, verify=False)
    assert usual.manifest is not None
    (spec,) = usual.manifest.lowerings.values()
    assert spec.rejected["plain"] == "it is a test's"
