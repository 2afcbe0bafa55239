"""One engine for real in every run of CI: a batch job on two workers of Ray, from what `posexport deploy` wrote.

Killed workers, interrupted jobs and Ray Serve are in `tests.serve.test_ray`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import posexport
from posexport.serve.deploy.write import deploy
from tests.engines import running
from tests.serve.test_ray import outputs
from tests.tolerances import agree


@pytest.mark.all
def test_a_job_gives_what_encode_gives_and_says_which_row_is_bad(tmp_path: Path) -> None:
    python = running.environment("ray-data") / "python"
    bundle, out, log = tmp_path / "bundle", tmp_path / "out", tmp_path / "log"
    posexport.convert(str(running.CHECKPOINT), bundle, target="cpu", verify=False, allow_pickle=True)
    deploy(bundle, "ray-data", tmp_path / "job", workers=2, link=True)
    job = tmp_path / "job" / "job.py"
    job.write_text(job.read_text().replace("rows=1024", "rows=25"))
    texts = running.texts(120)
    rows: list[dict[str, object]] = [{"id": number, "text": text} for number, text in enumerate(texts)]
    rows[60]["text"] = None
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with running.process([python, job, tmp_path / "in.jsonl", out], tmp_path, log) as started:
        assert started.wait(120) == 1, log.read_text()[-3000:]
    assert "120 rows in 5 files, 0 of them from before; 1 rows have no vector" in log.read_text()
    found = outputs(python, out)
    assert found["id"] == list(range(120))
    assert [error is not None for error in found["error"]] == [number == 60 for number in range(120)]
    good = [number for number in range(120) if number != 60]
    got = np.array([found["embedding"][number] for number in good])
    wanted = posexport.load(bundle).encode([texts[number] for number in good])
    agree(got, wanted, "model in float32", np.float32)
