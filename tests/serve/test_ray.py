"""Ray Data and Ray Serve for real, from what `posexport deploy` wrote: two workers, one of them killed; bad input."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import posexport
from posexport.serve.deploy.write import deploy
from tests.engines import running
from tests.tolerances import agree

pytestmark = pytest.mark.all

#: reads a job's outputs with pyarrow, which is in Ray's environment only
READ = """
import json, pathlib, sys
import pyarrow as pa, pyarrow.parquet as pq
files = sorted(pathlib.Path(sys.argv[1]).glob("part-*.parquet"))
print(json.dumps(pa.concat_tables([pq.read_table(file) for file in files]).to_pydict()))
"""
WRITE = """
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table(json.load(sys.stdin)), sys.argv[1], row_group_size=70)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return running.environment("ray") / "python"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("bundles") / "embedder"
    posexport.convert(str(running.CHECKPOINT), target, target="cpu", verify=False, allow_pickle=True)
    return target


@pytest.fixture
def job(bundle: Path, tmp_path: Path) -> Path:
    """A deployed batch job, with small output files."""
    deploy(bundle, "ray-data", tmp_path / "job", workers=2, link=True)
    file = tmp_path / "job" / "job.py"
    text = file.read_text()
    assert "rows=1024" in text
    file.write_text(text.replace("rows=1024", "rows=25"))
    return file


def outputs(python: Path, folder: Path) -> dict[str, Any]:
    done = subprocess.run([python, "-c", READ, folder], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write(python: Path, file: Path, columns: dict[str, Any]) -> None:
    subprocess.run([python, "-c", WRITE, file], input=json.dumps(columns), text=True, check=True)


def test_a_job_whose_worker_is_killed_loses_nothing_and_writes_nothing_twice(
    python: Path, job: Path, bundle: Path, tmp_path: Path
) -> None:
    texts = running.texts(2000)
    write(python, tmp_path / "in.parquet", {"id": list(range(2000)), "text": texts})
    out, log = tmp_path / "out", tmp_path / "log"
    with running.process([python, job, tmp_path / "in.parquet", out], tmp_path, log) as started:
        running.wait_for(lambda: len(list(out.glob("part-*"))) >= 3, 120, log)
        workers = running.children(started.pid, "MapWorker")
        assert len(workers) == 2
        running.kill_at_work(workers[0])
        assert started.wait(300) == 0, log.read_text()[-3000:]
    found = outputs(python, out)
    assert found["id"] == list(range(2000))
    assert found["error"] == [None] * 2000
    agree(np.array(found["embedding"]), posexport.load(bundle).encode(texts), "model in float32", np.float32)
    assert not list(out.glob(".part-*"))


def test_an_interrupted_job_goes_on(python: Path, job: Path, bundle: Path, tmp_path: Path) -> None:
    texts = running.texts(2000, seed=1)
    rows = [json.dumps({"body": text, "id": number}) for number, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    out, log = tmp_path / "out", tmp_path / "log"
    words = [python, job, tmp_path / "in.jsonl", out, "--column", "body"]
    with running.process(words, tmp_path, log) as started:
        running.wait_for(lambda: len(list(out.glob("part-*"))) >= 3, 120, log)
        started.send_signal(signal.SIGKILL)
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*.parquet")}
    assert 3 <= len(before) < 80
    (out / ".part-00000-0000000.parquet.0badc0de").write_bytes(b"half of it")
    with running.process(words, tmp_path, log) as started:
        assert started.wait(300) == 0, log.read_text()[-3000:]
    assert f"2000 rows in 80 files, {len(before)} of them from before" in log.read_text()
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before, "finished files stay"
    found = outputs(python, out)
    assert found["id"] == list(range(2000))
    agree(np.array(found["embedding"]), posexport.load(bundle).encode(texts), "model in float32", np.float32)
    assert not list(out.glob(".part-*"))
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write('\n{"body": "one more"}')
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "holds results of a job with another input; choose another output" in done.stderr


def test_bad_rows_and_bad_input(python: Path, job: Path, tmp_path: Path) -> None:
    rows = [
        '{"text": "a cat"}',
        '{"text": null}',
        '{"text": ""}',
        '{"text": "%s"}' % ("a " * 5_000_000),
        '{"text": "b"}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(rows) + "\n")
    log = tmp_path / "log"
    with running.process([python, job, tmp_path / "in.jsonl", tmp_path / "out"], tmp_path, log) as started:
        assert started.wait(120) == 1, log.read_text()[-3000:]
    assert "2 rows have no vector, their column 'error' says why" in log.read_text()
    found = outputs(python, tmp_path / "out")
    assert [vector is None for vector in found["embedding"]] == [error is not None for error in found["error"]]
    assert [error is not None for error in found["error"]] == [False, True, False, True, False]
    assert "list of strings" in found["error"][1]
    assert "characters" in found["error"][3]
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "texts.csv").write_text("text\na\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    write(python, tmp_path / "in.parquet", {"id": [1]})
    for given, out, sentence in (
        ("broken.jsonl", "b", "has a line that is no JSON"),
        ("texts.csv", "c", "is neither .parquet nor .jsonl"),
        ("nowhere.jsonl", "n", "cannot read"),
        ("empty", "e", "holds no .parquet or .jsonl file"),
        ("none.jsonl", "o", "has no rows"),
        ("in.parquet", "p", "has the columns id and no text"),
        ("in.jsonl", "full", "exists and holds no results of a job"),
    ):
        with running.process([python, job, tmp_path / given, tmp_path / out], tmp_path, log) as started:
            assert started.wait(120) == 2, log.read_text()[-3000:]
        sentences = [line for line in log.read_text().splitlines() if line.startswith("job.py: ")]
        assert len(sentences) == 1, log.read_text()[-3000:]
        assert sentence in sentences[0]


@pytest.fixture(scope="module")
def served(python: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of an application with two replicas, and the process that runs it."""
    at = tmp_path_factory.mktemp("serve")
    deploy(bundle, "ray-serve", at / "app", workers=2)
    file, port, log = at / "app" / "serve.yaml", running.free_port(), at / "log"
    file.write_text(file.read_text().replace("port: 8000", f"port: {port}"))
    url = f"http://127.0.0.1:{port}/"
    with running.process([python.with_name("serve"), "run", "serve.yaml"], at / "app", log) as started:
        running.wait_for(lambda: running.post(url, {"texts": ["a"]})[0] == 200, 120, log)
        yield url, started.pid


def replicas(pid: int) -> list[int]:
    return [each.pid for each in running.children(pid, "replica") if "ServeReplica" in " ".join(each.cmdline())]


def right(answer: Any, texts: list[str], bundle: Path) -> None:
    agree(np.array(answer["sentence_embedding"]), posexport.load(bundle).encode(texts), "model in float32", np.float32)


def test_a_replica_that_is_killed_loses_no_request(served: tuple[str, int], bundle: Path) -> None:
    url, pid = served
    # long ones: Ray Serve itself gives those again that a replica had not begun
    texts = running.texts(6400)
    before = running.wait_for(lambda: len(found := replicas(pid)) == 2 and found, 60)

    def ask(place: int) -> tuple[int, Any]:
        if place == 40:
            psutil.Process(before[0]).kill()
        return running.post(url, {"texts": texts[64 * place : 64 * place + 64]})

    answers = running.at_once(ask, range(100), clients=16)
    assert [status for status, _ in answers] == [200] * 100, [each for each in answers if each[0] != 200][:3]
    got = np.concatenate([np.array(answer["sentence_embedding"]) for _, answer in answers])
    agree(got, posexport.load(bundle).encode(texts), "model in float32", np.float32)
    after = running.wait_for(lambda: len(found := replicas(pid)) == 2 and found, 60)
    assert before[0] not in after


def test_bad_requests_are_400_and_the_replicas_live_on(served: tuple[str, int], bundle: Path) -> None:
    url, pid = served
    running.wait_for(lambda: len(replicas(pid)) == 2, 60)
    before = replicas(pid)
    for body, status, sentence in (
        ({"texts": []}, 400, "got no texts"),
        ({"texts": [1]}, 400, "Expected `str`, got `int`"),
        ({"texts": "a"}, 400, "Expected `array | null`, got `str`"),
        ({"inputs": {}}, 400, "got no inputs"),
        ({"inputs": {"input_ids": [[1, 10**6]]}}, 400, "input_ids holds 1000000"),
        ({"inputs": {"input_ids": [[1, 2], [3]]}}, 400, "rows differ in length"),
        ({"inputs": {"input_ids": [[1] * 2000]}}, 400, "this bundle takes at most"),
        ({"texts": ["a " * 5_000_000]}, 400, "the request has 10000000 characters"),
        ({"texts": ["a"], "prompt_name": "x"}, 400, "unknown prompt_name 'x'"),
        ({"txt": ["a"]}, 400, "unknown field `txt`"),
        ({}, 400, 'give "texts" or "inputs"'),
        (b"{nonsense", 400, "the body must be JSON"),
        (b"\xff", 400, "the body must be JSON"),
        (b"1" * (65 * 1024 * 1024), 413, "the request has more than 67108864 bytes"),
    ):
        got, answer = running.post(url, body)
        assert got == status, answer
        assert sentence in answer["error"]
    for _ in range(20):
        running.cancel(url, {"texts": running.texts(8)})
    texts = running.texts(64, seed=3)

    def ask(place: int) -> tuple[int, Any]:
        return running.post(url, {"texts": [texts[place]] if place % 2 else [""] * 0})

    for place, (got, answer) in enumerate(running.at_once(ask, range(64), clients=16)):
        assert got == (200 if place % 2 else 400)
        if place % 2:
            right(answer, [texts[place]], bundle)
    assert replicas(pid) == before
    with urllib.request.urlopen(url, timeout=10) as about:
        assert json.load(about)["takes"] == ["texts"]
