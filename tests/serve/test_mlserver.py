"""MLServer for real, from what `posexport deploy` wrote: two workers, one of them killed, bad input, tritonclient."""

import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import posexport
from posexport import Session
from posexport.serve.deploy.write import deploy
from tests.engines import running
from tests.tolerances import agree

pytestmark = pytest.mark.all
ADDRESSES = ("http_port", "grpc_port", "metrics_port")


@dataclass
class Served:
    """A running server, and the session that has the right answers."""

    pid: int
    ports: dict[str, int]
    session: Session
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http_port']}/v2/models/embedder/infer"

    def ask(self, texts: list[str]) -> tuple[int, Any]:
        return running.post(self.url, {"inputs": [text_input(texts)]})

    def workers(self) -> list[psutil.Process]:
        return running.children(self.pid, "multiprocessing.spawn") or running.children(self.pid, "mlserver")

    def metric(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.ports['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name}{{")]
        return sum(float(line.split()[-1]) for line in lines)


def text_input(texts: list[Any], **changes: Any) -> dict[str, Any]:
    return {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts, **changes}


def vectors(answer: Any) -> np.ndarray:
    (output,) = answer["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    at = tmp_path_factory.mktemp("mlserver")
    programs = running.environment("mlserver")
    posexport.convert(str(running.CHECKPOINT), at / "bundle", target="cpu", verify=False, allow_pickle=True)
    deploy(at / "bundle", "mlserver", at / "embedder", name="embedder", workers=2)
    settings = at / "embedder" / "settings.json"
    ports = {name: running.free_port() for name in ADDRESSES}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | ports))
    log = at / "log"
    with running.process([programs / "mlserver", "start", "."], at / "embedder", log) as started:
        server = Served(started.pid, ports, posexport.load(at / "bundle"), log)
        running.wait_for(lambda: server.ask(["a"])[0] == 200 and len(server.workers()) >= 2, 120, log)
        yield server
        assert started.poll() is None, log.read_text()[-3000:]


def test_rows_are_those_of_encode_and_requests_are_joined(served: Served) -> None:
    texts = running.texts(240)
    # small ones alone may each be computed before the next comes; every eighth keeps a worker busy meanwhile
    requests = [texts if start % 24 == 0 else texts[start : start + 1 + start // 3 % 3] for start in range(0, 240, 3)]
    before = served.metric("posexport_batch_requests_count")
    answers = running.at_once(served.ask, requests, clients=16)
    for request, (status, answer) in zip(requests, answers, strict=True):
        assert status == 200, answer
        agree(vectors(answer), served.session.encode(request), "model in float32", np.float32)
    batches = served.metric("posexport_batch_requests_count") - before
    assert 0 < batches < len(requests), "while a batch runs, others wait and are joined"


def test_bad_input_is_400_and_the_workers_live_on(served: Served) -> None:
    workers = {worker.pid for worker in served.workers()}
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 5]}
    asked: list[tuple[Any, str]] = [
        ([], "got no inputs"),
        ([text_input([])], "got no texts"),
        ([text_input([1])], "text must hold strings"),
        ([text_input(["a"], datatype="FP32")], "text must have datatype BYTES, got FP32"),
        ([text_input(["a"], shape=[2])], r"text has shape [2] and 1 strings"),
        ([text_input(["a"]), ids], "give text alone"),
        ([text_input(["a " * 5_000_000])], "the request has 10000000 characters"),
        ([{**ids, "shape": [1, 3]}], "cannot reshape"),
        ([{**ids, "data": [1, 10**6]}], "input_ids holds 1000000"),
        ([{**ids, "datatype": "FP32"}], "input_ids must hold integers"),
        ([{**ids, "shape": [1, 2000], "data": [1] * 2000}], "this bundle takes at most"),
        ([{**ids, "name": "pixels"}], "unknown input pixels"),
    ]
    for inputs, sentence in asked:
        status, answer = running.post(served.url, {"inputs": inputs})
        assert status == 400, (inputs if len(str(inputs)) < 200 else "long", answer)
        assert sentence in answer["error"]
    status, answer = running.post(served.url, {"inputs": [text_input(["a"])], "outputs": [{"name": "logits"}]})
    assert (status, "unknown output logits; this request gives sentence_embedding" in answer["error"]) == (400, True)
    assert running.post(served.url, b"{nonsense")[0] == 422, "MLServer's own answer to what is no JSON"
    assert served.ask(["a cat"])[0] == 200
    plural = {"inputs": [text_input(["a cat"], name="texts")]}
    assert np.array_equal(vectors(running.post(served.url, plural)[1]), vectors(served.ask(["a cat"])[1]))
    assert {worker.pid for worker in served.workers()} == workers
    log = served.log.read_text()
    assert "refused a request: text must hold strings" in log
    assert "Traceback" not in log


def test_bad_requests_fail_alone_and_cancelled_ones_hurt_nobody(served: Served) -> None:
    workers = {worker.pid for worker in served.workers()}
    texts = running.texts(120, seed=1)

    def ask(place: int) -> tuple[int, Any]:
        if place % 3 == 1:
            return running.post(served.url, {"inputs": [text_input([])]})
        if place % 3 == 2:
            running.cancel(served.url, {"inputs": [text_input([texts[place]])]})
        return served.ask([texts[place]])

    for place, (status, answer) in enumerate(running.at_once(ask, range(120), clients=16)):
        if place % 3 == 1:
            assert status == 400
        else:
            assert status == 200, answer
            agree(vectors(answer), served.session.encode([texts[place]]), "model in float32", np.float32)
    assert {worker.pid for worker in served.workers()} == workers


def test_tritonclient_over_http_and_grpc(served: Served) -> None:
    python = running.environment("mlserver") / "python"
    texts = ["A cat sits on the mat.", "ein Wörterbuch ☂", "b"]
    addresses = [f"127.0.0.1:{served.ports[name]}" for name in ADDRESSES[:2]]
    workers = {worker.pid for worker in served.workers()}
    done = subprocess.run(
        [python, running.ROOT / "tests" / "engines" / "oip_client.py", *addresses, "embedder"],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, status in (("http", "400"), ("grpc", "StatusCode.INVALID_ARGUMENT")):
        assert found[name]["ready"] == [True, True]
        assert found[name]["inputs"] == [["text", "BYTES"]]
        agree(np.array(found[name]["vectors"]), served.session.encode(texts), "model in float32", np.float32)
        for (code, message), sentence in zip(
            found[name]["errors"], ("input_ids holds 1000000", "got no texts"), strict=True
        ):
            assert (code, sentence in message) == (status, True), message
    assert len(found["cancelled"]) == 40
    assert {"StatusCode.CANCELLED", "StatusCode.DEADLINE_EXCEEDED"} <= set(found["cancelled"])
    agree(np.array(found["after"]), served.session.encode(texts), "model in float32", np.float32)
    assert {worker.pid for worker in served.workers()} == workers


def test_a_worker_that_is_killed_loses_nothing_that_a_client_sends_again(served: Served) -> None:
    """MLServer answers what was with that worker by 500; nothing is answered twice or wrongly."""
    texts = running.texts(400, seed=2)
    doomed = served.workers()[0]
    again = []

    def ask(place: int) -> Any:
        if place == 150:
            running.kill_at_work(doomed)
        for _ in range(50):
            status, answer = served.ask([texts[place]])
            if status == 200:
                return answer
            assert status == 500, answer
            again.append(place)
            time.sleep(0.2)
        raise AssertionError(answer)

    answers = running.at_once(ask, range(400))
    got = np.concatenate([vectors(answer) for answer in answers])
    agree(got, served.session.encode(texts), "model in float32", np.float32)
    assert len({answer["id"] for answer in answers}) == 400
    assert 0 < len(again) < 100, "only what was with the worker"
    running.wait_for(lambda: len(served.workers()) >= 2 and doomed.pid not in {w.pid for w in served.workers()}, 30)
    assert served.ask(["a cat"])[0] == 200


#: as `docker run --read-only --tmpfs /tmp` does it, and as the image's user: of root's rights only to read files, which
#: an interpreter in root's home needs
CONFINED = """mount --make-rprivate / && mount -o remount,ro,bind / && mount -t tmpfs -o mode=1777 tmpfs /tmp &&
exec setpriv --reuid=10001 --regid=10001 --clear-groups --inh-caps=-all,+dac_read_search \\
    --ambient-caps=-all,+dac_read_search "$@"
"""


def confined(*words: str | Path) -> list[str]:
    return ["unshare", "-m", "sh", "-c", CONFINED, "sh", *map(str, words)]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a file system read-only")
def test_what_docker_would_run_is_not_root_and_writes_to_tmp_alone() -> None:
    """The image's files and command."""
    programs = running.environment("mlserver")
    with tempfile.TemporaryDirectory(dir=running.ROOT / ".cache") as name:
        at = Path(name)
        at.chmod(0o755)
        posexport.convert(str(running.CHECKPOINT), at / "bundle", target="cpu", verify=False, allow_pickle=True)
        deploy(at / "bundle", "docker", at / "srv", name="embedder")
        settings = at / "srv" / "settings.json"
        ports = {port: running.free_port() for port in ADDRESSES}
        settings.write_text(json.dumps(json.loads(settings.read_text()) | ports))
        touched = subprocess.run(confined("touch", at / "x"), capture_output=True, text=True, check=False)
        if "Read-only file system" not in touched.stderr:
            pytest.skip(f"this machine allows no read-only file system: {touched.stderr}")
        url = f"http://127.0.0.1:{ports['http_port']}/v2/models/embedder/infer"
        with running.process(confined(programs / "mlserver", "start", "."), at / "srv", at / "log") as started:
            body = {"inputs": [text_input(["a cat"])]}
            running.wait_for(lambda: running.post(url, body)[0] == 200, 120, at / "log")
            assert psutil.Process(started.pid).uids().real == 10001
            assert running.post(url, {"inputs": [text_input([])]})[0] == 400
