"""A text in a batch has the outputs that it has alone, whatever side the files say that the tokenizer pads on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import posexport
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion import tokenizer
from tests.tolerances import agree

TESTS = Path(__file__).parents[1]
MODEL = TESTS / "embedders" / "bert-mean" / "model"
ROW = "texts padded by the bundle's tokenizer are as each alone"


def padding_left(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"padding_side": "left"}))
    return str(folder)


def test_an_encoder_with_learned_positions_pads_on_the_right(tmp_path: Path) -> None:
    folder, output = padding_left(tmp_path), tmp_path / "bundle"
    conversion = posexport.convert(folder, output, lengths=[3, 5])
    (said,) = [text for text in conversion.remarks if "padding_side" in text]
    assert said.startswith('tokenizer_config.json says padding_side = "left", and padding before a text changes')
    assert "the bundle pads on the right" in said
    assert json.loads((output / "tokenizer_config.json").read_text())["padding_side"] == "right"
    assert [item.verdict for item in conversion.report.invariants if item.name == ROW] == ["pass"]
    session, texts = posexport.load(output), ["the quick brown fox", "the", "over the lazy dog"]
    batch, alone = session.encode(texts), np.stack([session.encode(text) for text in texts])
    agree(batch, alone, "another library", np.float32)
    # and the same proof with the tokenizer of the bundle
    report = posexport.verify(output, against=folder, lengths=[3, 5])
    assert [item.verdict for item in report.invariants if item.name == ROW] == ["pass"]


def test_the_proof_finds_the_other_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_left_padding_counts", lambda _: False)
    conversion = posexport.convert(padding_left(tmp_path), tmp_path / "bundle", lengths=[3, 5])
    assert not conversion.good
    assert [item.name for item in conversion.report.invariants if item.verdict == "fail"] == [ROW]


@pytest.mark.parametrize(
    ("name", "task", "counts"),
    [
        ("bert-absolute", None, True),
        ("bart-forconditionalgeneration", None, True),  # its encoder numbers padding too
        ("roberta-absolute", None, False),  # numbers tokens by their ids
        ("xlnet-model", None, False),
        ("llama-forcausallm", None, False),
        ("gpt2-lmheadmodel", "features", False),  # numbers tokens by the mask
    ],
)
def test_padding_before_a_text_counts_where_it_has_positions(name: str, task: str | None, counts: bool) -> None:
    source = checkpoint_source(TESTS / "golden" / name, task=task, allow_pickle=False)
    assert tokenizer._left_padding_counts(source) is counts
