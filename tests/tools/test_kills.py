"""Commands that are killed leave nothing half (`ci.lab.kills`)."""

import random
import shutil
import time
from pathlib import Path

import pytest

from ci.lab.kills import ACTIONS, Action, forked, killed, whole


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
