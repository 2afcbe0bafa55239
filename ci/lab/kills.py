"""Ends commands that write at random moments by SIGKILL, and looks at what they leave.

``--count N --seed K [--action NAME]``: N kills shared among the actions. A bundle is whole or absent, and never lost
once it is there; a bundle that is only read is unchanged; a repaired file is whole or absent; no child process stays.
One run to the end cleans up. Prints a line of JSON for each action; exit 1 if anything was wrong.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser

import posexport
from posexport.inspect.audit.fix import fix
from posexport.inspect.audit.registry import RULES
from posexport.run.bundle.read import check_hashes, read

#: seconds that a run may take
_LONGEST = 120


@dataclass(frozen=True)
class Action:
    """A command to kill.

    Attributes:
        run: the command.
        wrong: faults of the folder after a kill, as sentences; ``complete``: it has run to its end before.
        leaves: names in the folder after a run that was not killed.
    """

    run: Callable[[], object]
    wrong: Callable[[bool], Iterator[str]]
    leaves: frozenset[str]


def whole(bundle: Path, complete: bool) -> Iterator[str]:
    """Yields the faults of a bundle, as sentences."""
    if not bundle.exists():
        if complete:
            yield "the bundle that was there is lost"
        return
    try:
        check_hashes(bundle, read(bundle))
    except posexport.PosexportError as err:
        yield f"half a bundle: {err}"


def digest(folder: Path) -> str:
    """Of the names and bytes of all files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def _converted(folder: Path, source: str) -> Path:
    path = folder / "b"
    posexport.convert(source, path, settings={"layers": 1}, lengths=[1, 5], force=True)
    return path


def converting(folder: Path) -> Action:
    """A bundle is written over the one that was there."""
    return Action(
        lambda: _converted(folder, "encoder-rope"), lambda complete: whole(folder / "b", complete), frozenset(["b"])
    )


def reading(source: str, run: Callable[[Path], object]) -> Callable[[Path], Action]:
    """A command that only reads a bundle."""

    def action(folder: Path) -> Action:
        path = _converted(folder, source)
        before = digest(path)

        def wrong(_: bool) -> Iterator[str]:
            if digest(path) != before:
                yield "what was read is another bundle now"
            if processes := with_argument(str(path)):
                yield f"processes go on: {processes}"

        return Action(lambda: run(path), wrong, frozenset(["b"]))

    return action


def repairing(folder: Path) -> Action:
    """A repaired file is written over the one that was there."""
    model, fixed, right = (folder / name for name in ("model.onnx", "fixed.onnx", "right.onnx"))
    onnx.save(onnx.parser.parse_model(RULES["PX101"].bad), model)
    fix(model, ["PX101"], right)
    expected = right.read_bytes()

    def wrong(complete: bool) -> Iterator[str]:
        if (complete or fixed.exists()) and fixed.read_bytes() != expected:
            yield "half a file"

    return Action(
        lambda: fix(model, ["PX101"], fixed, force=True), wrong, frozenset(["model.onnx", "fixed.onnx", "right.onnx"])
    )


#: each in a folder of its name, which it fills with what it reads
ACTIONS: dict[str, Callable[[Path], Action]] = {
    "convert": converting,
    "verify": reading("encoder-rope", posexport.verify),
    "audit --fix": repairing,
    "audit --run": reading("encoder-rope", lambda path: posexport.audit(path, run=True)),
    "generate": reading("decoder-rope", lambda path: posexport.load(path).generate([[5, 6, 7]], max_new_tokens=40)),
}


def with_argument(text: str) -> list[int]:
    """Processes that have a text in their command line, other than this one, one second after."""
    end = time.monotonic() + 1
    while True:
        numbers = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if text.encode() in line and int(path.parent.name) != os.getpid():
                numbers.append(int(path.parent.name))
        if not numbers or time.monotonic() > end:
            return numbers
        time.sleep(0.05)


def started(run: Callable[[], object]) -> int:
    """Run in a copy of this process; returns its number."""
    child = os.fork()
    if not child:
        code = 1
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (1, 2):
                os.dup2(null, number)
            run()
            code = 0
        finally:
            os._exit(code)
    return child


def forked(run: Callable[[], object], seconds: float) -> bool:
    """Run in a copy of this process, which is killed after ``seconds``; whether it came to its end."""
    child = started(run)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                raise RuntimeError(f"it failed with {status}")
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def killed(action: Action, count: int, rng: random.Random, folder: Path) -> dict[str, object]:
    """``count`` kills, then a run to the end."""
    wrong: list[str] = []
    started = time.monotonic()
    action.run()  # everything is imported before the first fork
    lasts = time.monotonic() - started
    started = time.monotonic()
    if not forked(action.run, _LONGEST):
        raise RuntimeError("it does not come to its end")
    lasts = time.monotonic() - started
    ended = 0
    for number in range(count):
        moment = rng.uniform(0, lasts)
        done = forked(action.run, moment)
        ended += not done
        wrong += [f"kill {number} after {moment:.3f} s: {what}" for what in action.wrong(True)]
    forked(action.run, _LONGEST)
    wrong += action.wrong(True)
    left = {path.name for path in folder.iterdir()} - action.leaves
    return {"killed": ended, "of": count, "seconds": round(lasts, 2), "wrong": wrong, "left": sorted(left)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--action", action="append", choices=list(ACTIONS))
    arguments = parser.parse_args()
    failed = False
    names = arguments.action or list(ACTIONS)
    with tempfile.TemporaryDirectory(prefix="kills-") as scratch:
        for name in names:
            folder = Path(scratch, name)
            folder.mkdir()
            rng, share = random.Random(f"{name} {arguments.seed}"), arguments.count // len(names)
            result = killed(ACTIONS[name](folder), share, rng, folder)
            failed |= bool(result["wrong"] or result["left"])
            print(json.dumps({"action": name, **result}), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
