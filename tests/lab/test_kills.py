"""Commands that are killed leave nothing half (`ci.lab.kills`)."""

import os
import random
import resource
import shutil
import time
from pathlib import Path

import pytest

from ci.lab.kills import ACTIONS, Action, forked, killed, started, whole
from posexport.errors import PosexportError
from posexport.inspect.audit.fix import fix
from posexport.inspect.audit.registry import RULES
from tests.inspect.audit.graphs import saved


@pytest.mark.all
@pytest.mark.parametrize("name", list(ACTIONS))
def test_a_killed_command_leaves_nothing_half(name: str, tmp_path: Path) -> None:
    result = killed(ACTIONS[name](tmp_path), 8, random.Random(f"test {name}"), tmp_path)
    assert (result["wrong"], result["left"]) == ([], [])
    assert result["killed"]


def test_half_a_bundle_is_seen(tmp_path: Path) -> None:
    from tests.tiny_bundle import write_bundle

    path = write_bundle(tmp_path / "b")
    assert list(whole(path, True)) == []
    with (path / "model.onnx").open("ab") as file:
        file.write(b"x")
    assert "half a bundle" in next(whole(path, True))
    shutil.rmtree(path)
    assert list(whole(path, False)) == []
    assert list(whole(path, True)) == ["the bundle that was there is lost"]


def test_what_a_killed_command_leaves_is_seen(tmp_path: Path) -> None:
    def run() -> None:
        (tmp_path / "half").touch()
        time.sleep(60)

    def wrong(_: bool) -> list[str]:
        return ["half"] if (tmp_path / "half").exists() else []

    action = Action(run, wrong, frozenset())  # type: ignore[arg-type]
    assert not forked(action.run, 0.5)
    assert list(action.wrong(True)) == ["half"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("old", [False, True])
def test_a_repair_on_a_full_disk_is_a_sentence_and_leaves_the_old_file(old: bool, tmp_path: Path) -> None:
    model, output = saved(RULES["PX101"].bad, tmp_path), tmp_path / "fixed.onnx"
    if old:
        output.write_bytes(b"old")

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
        with pytest.raises(PosexportError, match=r"cannot write .*fixed\.onnx"):
            fix(model, ["PX101"], output, force=True)

    before = names(tmp_path)
    assert forked(run, 60)
    assert names(tmp_path) == before
    assert not old or output.read_bytes() == b"old"


def test_two_repairs_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    model, output = saved(RULES["PX101"].bad, tmp_path), tmp_path / "fixed.onnx"
    children = [started(lambda: fix(model, ["PX101"], output, force=True)) for _ in range(3)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    expected = fix(model, ["PX101"], tmp_path / "alone.onnx")
    assert output.read_bytes() == Path(expected.path).read_bytes()
    assert names(tmp_path) == {"model.onnx", "fixed.onnx", "alone.onnx"}
