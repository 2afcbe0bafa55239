"""examples/extension: a package that adds an encoding, a family and a lowering, installed as pip installs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = [argument for pair in ("layers=1", "hidden=20", "heads=5", "feedforward=17") for argument in ("--set", pair)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("extension")
    shutil.copytree(ROOT / "examples" / "extension", folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", folder / "site", folder / "source"], check=True)
    return folder / "site"


def run(site: Path, *arguments: object, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_lists_name_the_package_and_import_nothing_of_it(site: Path) -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nimport posexport\nfrom posexport.cli import group\n"
        "for arguments in (['--help'], ['convert', '--help'], *(['list', kind] for kind in sys.argv[1:])):\n"
        "    print(CliRunner().invoke(group, arguments).output)\n"
        "assert 'posexport_ramp' not in sys.modules\n"
    )
    listed = [line.split() for line in run(site, "-c", program, "encodings", "families", "lowerings").splitlines()]
    assert ["ramp", "from", "the", "package", "posexport-ramp", "0.1"] in listed
    assert ["einsum", "from", "the", "package", "posexport-ramp", "0.1"] in listed
    assert ["ramp-llama"] in listed  # below its package


def test_its_encoding_is_proven_by_its_lowering(site: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "ramp"
    run(site, "-m", "posexport", "convert", "encoder-ramp", *SETTINGS, "--lowering", "einsum", "-o", bundle)
    manifest = json.loads((bundle / "posexport.json").read_bytes())
    assert manifest["proven"]
    assert manifest["encoding"]["name"] == "ramp"
    assert {entry["lowering"] for entry in manifest["lowerings"].values()} == {"einsum"}


@pytest.mark.all
def test_its_family_reads_a_checkpoint(site: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "llama-forcausallm", tmp_path / "checkpoint")
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "ramp-llama"}))
    bundle = tmp_path / "bundle"
    run(site, "-m", "posexport", "convert", tmp_path / "checkpoint", "--length", 1, "--length", 17, "-o", bundle)
    assert json.loads((bundle / "posexport.json").read_bytes())["task"] == "text-generation"


@pytest.mark.all
def test_its_lowering_changes_nothing_unless_named(site: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "usual"
    run(site, "-m", "posexport", "convert", "encoder-alibi", *SETTINGS, "--no-verify", "-o", bundle)
    assert "einsum" not in (bundle / "posexport.json").read_text()


def test_a_broken_package_costs_one_sentence(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    (tmp_path / "site" / "posexport_ramp.py").write_text("import no_such_library\n")
    said = run(tmp_path / "site", "-m", "posexport", "convert", "encoder-ramp", "-o", tmp_path / "b", code=2)
    assert said == (
        "posexport: the package posexport-ramp 0.1 adds 'ramp' to posexport.encodings, but posexport_ramp cannot be "
        "loaded: ModuleNotFoundError: No module named 'no_such_library'; repair or uninstall it\n"
    )
