"""Tokens that a configuration forbids, and the encodings of layers that differ."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from posexport.base.spec import EncodingSpec
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.encodings.build import build
from posexport.encodings.compose import RotationAndTerm
from posexport.encodings.local_window import LocalWindow
from posexport.errors import PosexportError
from posexport.run.load import load
from posexport.run.prefill import recomputed_from

GOLDEN = Path(__file__).parents[1] / "golden"


def converted(tmp_path: Path, name: str, **generation: Any) -> Path:
    shutil.copytree(GOLDEN / name, tmp_path / "from")
    (tmp_path / "from" / "generation_config.json").write_text(json.dumps(generation))
    assert convert(str(tmp_path / "from"), tmp_path / "to", ConvertOptions(verify=False)).good
    return tmp_path / "to"


@pytest.mark.all
def test_generation_obeys_the_configuration(tmp_path: Path) -> None:
    free = load(converted(tmp_path, "gpt2-lmheadmodel"))
    first, second = free.generate([[3, 4, 5]], max_new_tokens=2, eos_token_id=[]).completions[0].tokens
    never = load(converted(tmp_path / "never", "gpt2-lmheadmodel", suppress_tokens=[first]))
    made = never.generate([[3, 4, 5]], max_new_tokens=12, eos_token_id=[]).completions[0].tokens
    assert first not in made
    words = load(converted(tmp_path / "words", "gpt2-lmheadmodel", bad_words_ids=[[first, second]]))
    made = words.generate([[3, 4, 5]], max_new_tokens=2, eos_token_id=[]).completions[0].tokens
    assert made[0] == first
    assert made[1] != second


@pytest.mark.all
def test_a_configuration_that_is_unsound_is_refused(tmp_path: Path) -> None:
    target = converted(tmp_path, "gpt2-lmheadmodel", suppress_tokens="all")
    with pytest.raises(PosexportError, match=r"cannot use .*generation_config.json: .* convert again with a sound one"):
        load(target).generate([[3]], eos_token_id=[])


@pytest.mark.all
def test_a_manifest_lists_the_encodings_of_layers_that_differ(tmp_path: Path) -> None:
    mixed = load(converted(tmp_path, "gemma3-forcausallm")).manifest
    names = [one.name for one in mixed.encodings]
    assert len(set(map(msgspec.json.encode, mixed.encodings))) > 1
    assert names[0] == mixed.encoding.name  # type: ignore[union-attr]
    same = load(converted(tmp_path / "same", "gpt2-lmheadmodel")).manifest
    assert same.encodings == []
    assert same.layers == [same.encoding]


def test_a_longrope_inside_a_window_is_recomputed_too() -> None:
    plain = EncodingSpec(name="nope", parameters={})
    rotation, _ = build("rope-longrope", {"head_size": 4, "max_positions": 20}, {})
    windowed = RotationAndTerm(rotation, LocalWindow(left=5, right=0)).spec
    assert windowed.name == "rope-longrope+local-window"
    assert recomputed_from([plain, windowed]) == 20
    assert recomputed_from([plain]) is None
