"""The scoreboard: small checkpoints through five exporters, and one judge; a line for each pair and exporter.

Rows are in ci/results/scoreboard.jsonl; one that is there for the same entry and versions is left out. ``--table``
writes the tables of docs/ and runs nothing.
"""

import argparse
import datetime
import fcntl
import fnmatch
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from ci.lab.scoreboard.plan import ROOT, pairs

RECORD = ROOT / "ci/results/scoreboard.jsonl"
EXPORTERS = ("posexport", "optimum", "transformers", "mobius", "torch")
#: seconds that an export and a judgement may take, on a machine with other load
_LIMIT = 900
_COLOURS, _ERROR = (
    re.compile("\x1b\\[[0-9;]*m"),
    re.compile(r"^(?:[\w.]*(?:Error|Exception|Violation\w*|SymNode|Unsupported)\b|Error: )"),
)
#: errors that say only in what step another one was raised
_WRAPPERS = ("TorchExportError", "ConversionError", "export_program failed")
_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}


def python(environment: str) -> Path:
    """The interpreter of an environment of ci/lab/rivals, or of this checkout."""
    return ROOT / (f".cache/rivals/{environment}/bin/python" if environment else ".venv/bin/python")


def versions(environment: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Installed versions of packages."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    named = [name for name in packages if name != "posexport"]
    installed: dict[str, str] = json.loads(subprocess.check_output([python(environment), "-c", code, *named]))
    return installed


def recorded(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The lines of a record by pair and exporter."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(result["pair"], result["exporter"]): result for result in map(json.loads, lines)}


def record(path: Path, result: dict[str, Any]) -> None:
    """Put a result in its place; a lock keeps concurrent runs apart."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = {**recorded(path), (result["pair"], result["exporter"]): result}
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)))
        temporary.replace(path)


def run(command: list[str]) -> tuple[int, str, str, float, float]:
    """Exit code, stdout, stderr, seconds and peak memory in MB of a process and of those that it waited for."""
    environment = {**os.environ, **_QUIET, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.monotonic()
        # a process group, so that what it started ends with it
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err, start_new_session=True)
        late = threading.Timer(_LIMIT, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        _, status, usage = os.wait4(process.pid, 0)
        late.cancel()
        seconds, process.returncode = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        if seconds > _LIMIT:
            err.write(f"\nTimeoutError: not done within {_LIMIT} seconds")
        for file in (out, err):
            file.seek(0)
        return process.returncode, out.read(), err.read(), seconds, usage.ru_maxrss / 1024


def reason(out: str, err: str) -> str:
    """The sentence with which an exporter ended: of nested errors the cause, else the last line."""
    lines = [line.strip() for line in _COLOURS.sub("", f"{out}\n{err}").splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.match(line)]
    if named and any(wrapper in named[-1] for wrapper in _WRAPPERS):
        return named[0][:400]
    return (named or lines or ["no output"])[-1][:400]


def checkpoint(name: str, entry: dict[str, Any], environment: str, into: Path) -> Path:
    """The folder of a checkpoint, made where the entry is new; raises RuntimeError where the version has no class."""
    folder = into / "checkpoints" / environment / name
    stamp = folder.with_suffix(".entry")
    if not stamp.exists() or stamp.read_text() != digest(entry):
        shutil.rmtree(folder, ignore_errors=True)
        command = [str(python(environment)), str(Path(__file__).with_name("make.py")), str(folder), json.dumps(entry)]
        code, out, err, *_ = run(command)
        if code:
            raise RuntimeError(reason(out, err))
        stamp.write_text(digest(entry))
    return folder


def digest(entry: dict[str, Any]) -> str:
    """What tells whether a result is of the entry as it is."""
    return sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:12]


def judged(name: str, entry: dict[str, Any], exporter: str, into: Path, before: dict[str, Any]) -> dict[str, Any]:
    """The verdict on what an exporter makes of a checkpoint, with seconds and memory of the export.

    ``before``: the line of the previous run, to judge its files again.
    """
    module = importlib.import_module(f"ci.lab.scoreboard.exporters.{exporter}")
    try:
        source = checkpoint(name, entry, module.REFERENCE, into)
    except RuntimeError as error:
        return {"verdict": "refuses", "said": f"no checkpoint of this type in its version of transformers: {error}"}
    folder = into / "exports" / exporter / name
    if "seconds" in before and all(path.exists() for path in module.stages(folder).values()):
        cost = {key: before[key] for key in ("seconds", "peak_mb")}
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = module.command(python(module.ENVIRONMENT), source, folder, entry["task"])
        code, out, err, seconds, peak = run(command)
        cost = {"seconds": round(seconds, 1), "peak_mb": round(peak)}
        if code or not all(path.exists() for path in module.stages(folder).values()):
            return {"verdict": "refuses", "said": reason(out, err).replace(str(into), "."), **cost}
    judge = [str(python(module.REFERENCE)), "-m", "ci.lab.scoreboard.judge"]
    code, out, err, *_ = run([*judge, exporter, str(source), str(folder), entry["task"]])
    try:
        verdict: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        verdict = {"verdict": "unjudged", "said": reason(out, err)}
    return {**verdict, **cost}


def one(name: str, exporter: str, into: Path, before: dict[str, Any]) -> dict[str, Any]:
    """The line of a pair and exporter."""
    entry = pairs()[name]
    module = importlib.import_module(f"ci.lab.scoreboard.exporters.{exporter}")
    # the last commit of the product: changes of tools and pages leave results valid
    log = ["git", "log", "-1", "--format=%h", "--", "posexport", "models"]
    commit = subprocess.check_output(log, cwd=ROOT, text=True).strip()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    result: dict[str, Any] = {
        "pair": name, "exporter": exporter, "class": entry["class"], "task": entry["task"], "group": entry["group"],
        **judged(name, entry, exporter, into, before), "entry": digest(entry), "commit": commit,
        "versions": versions(module.ENVIRONMENT, module.PACKAGES), "date": today,
    }  # fmt: skip
    shown = {key: result.get(key) for key in ("pair", "exporter", "verdict", "point", "said", "seconds", "peak_mb")}
    print(json.dumps({key: value for key, value in shown.items() if value is not None}), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="pairs by name; may stand several times")
    parser.add_argument("--exporter", action="append", choices=EXPORTERS, help="default: all five")
    parser.add_argument("--again", action="store_true", help="run what is recorded, too")
    parser.add_argument("--rejudge", action="store_true", help="with --again: judge the files that are there")
    parser.add_argument("--list", action="store_true", help="the pairs that have rows to run, in their order")
    parser.add_argument("--table", action="store_true", help="write the tables of docs/")
    parser.add_argument("--record", type=Path, default=RECORD, help="in place of ci/results/scoreboard.jsonl")
    parser.add_argument("--into", type=Path, default=ROOT / ".cache/scoreboard")
    options = parser.parse_args()
    if options.table:
        sys.exit(subprocess.call([python(""), "ci/write_docs.py"], cwd=ROOT))
    entries, done, into = pairs(), recorded(options.record), options.into.absolute()
    fitting = [name for name in entries if any(fnmatch.fnmatch(name, pattern) for pattern in options.only or ["*"])]
    if not fitting:
        sys.exit(f"no pair is called {', '.join(options.only)}; --list names them")
    for name in fitting:
        todo = [
            exporter
            for exporter in options.exporter or EXPORTERS
            if options.again or done.get((name, exporter), {}).get("entry") != digest(entries[name])
        ]
        if options.list and todo:
            print(name)
        for exporter in [] if options.list else todo:
            before = done.get((name, exporter), {}) if options.rejudge else {}
            record(options.record, one(name, exporter, into, before))


if __name__ == "__main__":
    main()
