"""The README's tables are today's, and the commands of its table of the tutorials do what they say."""

import importlib.util
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from posexport.cli import group

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_tables_are_those_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "ci" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.filled(README) == README, "run python ci/readme.py"


def of_the_tutorials() -> list[str]:
    """The models of the table, with their settings."""
    table = README[README.index("| in the tutorials") : README.index("## Lengths")]
    found = re.findall(r"`((?:encoder|decoder)-[^`]*)`", table)
    assert len(found) > 20
    return sorted(set(found))


@pytest.mark.parametrize("command", of_the_tutorials())
def test_every_model_of_the_tutorials_is_proven(command: str, tmp_path: Path) -> None:
    name, *settings = command.split()
    arguments = [name, *settings, "--set", "layers=1", "--length", "1", "--length", "17", "--threads", "1"]
    result = CliRunner().invoke(group, ["convert", *arguments, "-o", str(tmp_path / "b")])
    assert result.exit_code == 0, result.output
    assert "proven" in result.output
