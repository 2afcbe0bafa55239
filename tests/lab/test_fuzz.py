"""Damaged files of strangers (`ci.lab.fuzz`): a minute of new ones, and what counts as wrong."""

from pathlib import Path
from random import Random

import pytest

from ci.lab.fuzz import worker
from ci.lab.fuzz.kinds import KINDS, Kind
from ci.lab.fuzz.run import tried_range
from posexport.errors import PosexportError

#: inputs of each kind, about ten seconds
COUNTS = {"onnx": 600, "manifest": 2000, "config": 80, "decoder-config": 150, "safetensors": 150, "tokenizer": 30}
#: behind all numbers of ci/results/fuzz.json
FIRST = 10**9


@pytest.mark.all
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_damaged_files_get_a_sentence(kind: str) -> None:
    count = COUNTS.get(kind, 60)
    assert tried_range(kind, FIRST, FIRST + count) == (count, [])


def reading(monkeypatch: pytest.MonkeyPatch, folder: Path, read: object) -> str | None:
    monkeypatch.setitem(KINDS, "broken", Kind(lambda *_: None, read))  # type: ignore[arg-type]
    wrong = worker.tried("broken", 0, folder)
    return None if wrong is None else wrong["what"]


def test_what_counts_as_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(error: Exception) -> object:
        def read(_: Path) -> None:
            raise error

        return read

    assert reading(monkeypatch, tmp_path, fail(PosexportError("no such thing"))) is None
    assert (reading(monkeypatch, tmp_path, fail(KeyError("a"))) or "").startswith("KeyError at ")
    assert (reading(monkeypatch, tmp_path, fail(PosexportError(""))) or "").startswith("no sentence")


def test_files_outside_are_seen(tmp_path: Path) -> None:
    (tmp_path / "inside").touch()
    (tmp_path / "linked").symlink_to("/etc/hostname")
    opened = [str(tmp_path / "inside"), __file__, "/dev/null"]
    assert worker.outside(opened, tmp_path) == []
    assert worker.outside([*opened, str(tmp_path / "linked"), "/etc/passwd"], tmp_path) == [
        "/etc/hostname",
        "/etc/passwd",
    ]


def test_a_number_names_an_input(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        KINDS["onnx"].write(folder, Random("onnx 12"))
    first, second = ((folder / "model.onnx").read_bytes() for folder in folders)
    assert first == second
