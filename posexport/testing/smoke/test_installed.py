"""Whether an installation works, without checkout, network and PyTorch; with PyTorch it converts a model too."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import posexport
from posexport.base.system.extras import is_installed

#: a BERT with random weights, its tokenizer and mean pooling (tests/embedders/bert-mean)
EMBEDDER = Path(__file__).parent / "embedder"
TEXTS = ("the lowest cat", "a new wide mat sat on the widest of the cats")


def run(*words: str | Path, cwd: Path) -> str:
    """The stdout of a command line."""
    line = [sys.executable, "-m", "posexport", *map(str, words)]
    done = subprocess.run(line, cwd=cwd, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_package_is_there() -> None:
    assert (Path(posexport.__file__).parent / "py.typed").is_file()
    assert importlib.util.find_spec("posexport.models") is not None


def test_a_bundle_is_right_on_this_machine() -> None:
    session = posexport.load(EMBEDDER)
    assert session.self_check()
    together = session.encode(list(TEXTS))
    alone = np.concatenate([session.encode([text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-5


def test_commands_run(tmp_path: Path) -> None:
    assert "passed" in run("verify", EMBEDDER, cwd=tmp_path).lower()
    run("run", EMBEDDER, "--text", TEXTS[0], "--text", TEXTS[1], cwd=tmp_path)
    environment = json.loads(run("env", "--json", cwd=tmp_path))
    assert environment["providers"]["cpu"] == "loads"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not is_installed("torch") or not is_installed("onnxscript"), reason="the extra export is absent")
def test_a_model_converts_and_generates(tmp_path: Path) -> None:
    sizes = {"layers": 1, "hidden": 20, "heads": 5}
    done = posexport.convert("decoder-rope", tmp_path / "decoder", settings=sizes, lengths=[1, 17], threads=1)
    assert done.good
    session = posexport.load(tmp_path / "decoder")
    assert session.generate([[1, 2, 3]], max_new_tokens=4).completions[0].tokens
