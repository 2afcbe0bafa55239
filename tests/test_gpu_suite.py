"""The CUDA suite: its code on the CPU provider here, itself where there is a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from posexport.errors import PosexportError
from posexport.runtime.providers import check_loads

ROOT = Path(__file__).parent.parent
SOME = ["encoder-nope", "tests/golden/bert-relative_key", "encoder-decoder-nope --cache static"]


def missing() -> str | None:
    """Why CUDA does not load; None where it does."""
    try:
        check_loads("cuda")
    except PosexportError as err:
        return str(err)
    return None


def suite(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "ci/cuda/suite.py", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.all
def test_the_suite_s_code_on_the_cpu_provider(tmp_path: Path) -> None:
    done = suite(tmp_path, "--provider", "cpu", "--only", *SOME)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.splitlines()
    assert [row.split()[:2] for row in rows] == [["proven", name.split()[0]] for name in SOME]
    assert list(tmp_path.iterdir()) == [], "figures are written for CUDA only"


def test_without_cuda_it_says_what_is_missing(tmp_path: Path) -> None:
    reason = missing()
    if reason is None:
        pytest.skip("CUDA loads here")
    done = suite(tmp_path)
    assert (done.returncode, done.stderr) == (2, f"ci/gpu: {reason}\n")


@pytest.mark.cuda
def test_the_suite_on_cuda(tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    done = suite(tmp_path, "--only", *SOME)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(next(tmp_path.glob("cuda-*.json")).read_text())
    assert [row["verdict"] for row in record["models"]] == ["proven"] * len(SOME)
    assert not any(row["strays"] for row in record["models"])
