"""Engines that run for real: their environments (ci/engines/setup), processes, and clients in threads."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent.parent
WORDS = json.loads((ROOT / "tests" / "embedders" / "texts.json").read_text())
#: the embedder that the engines serve: real poolings, small
CHECKPOINT = ROOT / "tests" / "embedders" / "bert-mean" / "model"
#: one thread a process; Ray without tokens and statistics, MLServer's Ray workers without remarks
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def environment(name: str) -> Path:
    """The folder of programs of an engine's environment, made where it is not there yet."""
    command = [ROOT / "ci" / "engines" / "setup", name]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable})
    return ROOT / ".cache" / "engines" / name / "bin"


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 40 words."""
    draw = random.Random(seed)
    words = " ".join(text for text in WORDS if text.strip()).split()
    return [" ".join(draw.choice(words) for _ in range(draw.randint(1, 40))) for _ in range(count)]


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextlib.contextmanager
def process(words: Sequence[str | Path], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program and all that it starts, which are gone afterwards."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ENVIRONMENT
    env["PATH"] = f"{Path(words[0]).parent}:{env['PATH']}"
    with log.open("wb") as out:
        started = subprocess.Popen(words, cwd=folder, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield started
        finally:
            family = children(started.pid)
            started.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(30)
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            started.kill()
            started.wait()


def children(pid: int, named: str = "") -> list[psutil.Process]:
    """The processes below one, whose title or command holds ``named``."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if named in " ".join(each.cmdline()):
                    found.append(each)
    return found


def kill_at_work(doomed: psutil.Process) -> None:
    """Kill a process that surely holds work: it is stopped first, while more is given to it."""
    doomed.suspend()
    time.sleep(1)
    doomed.kill()


def wait_for(what: Callable[[], Any], seconds: float, log: Path | None = None) -> Any:
    """What ``what`` gives when it first gives something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            if found := what():
                return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s" + (f": {log.read_text()[-3000:]}" if log else ""))


def post(url: str, body: Any, timeout: float = 60) -> tuple[int, Any]:
    """HTTP status and JSON of an answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as err:
        text = err.read().decode()
        try:
            return err.code, json.loads(text)
        except ValueError:
            return err.code, {"error": text}


def cancel(url: str, body: Any) -> None:
    """Send a request, and hang up before it is answered."""
    host, port = url.split("/")[2].split(":")
    path, data = "/" + url.split("/", 3)[3] if url.count("/") > 2 else "/", json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + data)
        time.sleep(0.02)


def at_once(ask: Callable[[Any], Any], given: Sequence[Any], clients: int = 8) -> list[Any]:
    """What ``ask`` gives for each, asked by so many clients at a time."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(ask, given))
