"""ci/lab/rates: which models it draws, that their weights differ, and that a run is resumed from its log."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path.insert(0, "ci/lab/rates")
import rates
for model in rates.models(400):
    print(model.key)
"""


@pytest.mark.all
def test_a_round_has_every_builtin_model_and_every_family() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    keys = done.stdout.splitlines()
    assert len(keys) == len(set(keys)) == 400
    families = {path.name.split("-")[0] for path in (ROOT / "tests" / "golden").iterdir() if path.is_dir()}
    assert families <= {key.split()[0].split("-")[0] for key in keys}
    assert {key.split()[-1] for key in keys} == {"1", "2"}


@pytest.mark.all
def test_a_run_is_resumed_and_written(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "rates.json"
    command = [sys.executable, "ci/lab/rates/rates.py", "--count", "1", "--log", str(log), "--out", str(out)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    first = json.loads(out.read_text())
    assert (first["models"], first["refused"]) == (1, [])
    row = json.loads(log.read_text())
    log.write_text(json.dumps({**row, "refused": True, "reason": "as the log says"}) + "\n")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert json.loads(out.read_text())["refused"] == [{"model": row["model"], "reason": "as the log says"}]
    assert "REFUSED" in again.stdout
