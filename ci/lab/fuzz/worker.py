"""Reads damaged inputs by number: ``KIND FIRST LAST``. Prints the number before each, so that its end names the input.

A reader may return, or raise PosexportError; a graph of a bundle may fail in ONNX Runtime. What it opens is inside the
input's folder, or part of the installation. A native library's opens are not seen.
"""

import json
import os
import resource
import shutil
import sys
import sysconfig
import tempfile
import traceback
from pathlib import Path
from random import Random
from typing import Any

from ci.lab.fuzz.kinds import KINDS, ROOT
from posexport.errors import PosexportError

#: bytes of address space
_MEMORY = 12 << 30
_INSTALLED = tuple(
    f"{Path(path).resolve()}{os.sep}" for path in (ROOT, ROOT / ".venv", sys.base_prefix, sysconfig.get_path("stdlib"))
)
_SYSTEM = ("/dev/null", "/dev/urandom", "/proc/", "/sys/", "/usr/", "/lib")
_opened: list[str] = []
_watching = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _opened.append(os.path.abspath(os.fsdecode(arguments[0])))


def outside(opened: list[str], folder: Path) -> list[str]:
    """The paths that are neither in the folder nor part of the installation."""
    real = [os.path.realpath(path) for path in opened]
    # what the product writes itself
    scratch = [f"{tempfile.gettempdir()}{os.sep}{name}" for name in ("tmp", "posexport-")]
    inside = (f"{folder.resolve()}{os.sep}", *_INSTALLED, *_SYSTEM, *scratch)
    return [path for path in real if not f"{path}{os.sep}".startswith(inside)]


def tried(kind: str, number: int, folder: Path) -> dict[str, Any] | None:
    """What went wrong with an input, or None. ``folder``: an empty one."""
    global _watching
    KINDS[kind].write(folder, Random(f"{kind} {number}"))
    _opened.clear()
    _watching = True
    try:
        KINDS[kind].read(folder)
    except PosexportError as err:
        said = str(err)
        if not said or "\n\n" in said:
            return {"kind": kind, "number": number, "what": f"no sentence: {said[:200]}"}
    except BaseException as err:  # noqa: BLE001 (panics of Rust are no Exception)
        if type(err).__module__.startswith("onnxruntime") and kind == "bundle":
            return None  # a graph with the right hash that fails when it runs: ONNX Runtime says so
        last = traceback.extract_tb(err.__traceback__)
        at = next((f for f in reversed(last) if "/posexport/" in f.filename), last[-1])
        where = f"{at.filename.rpartition('/posexport/')[2]}:{at.lineno}"
        return {"kind": kind, "number": number, "what": f"{type(err).__name__} at {where}: {str(err)[:200]}"}
    finally:
        _watching = False
    if paths := outside(_opened, folder):
        return {"kind": kind, "number": number, "what": f"opened {paths[0]}"}
    return None


def main(kind: str, first: str, last: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.addaudithook(_hook)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = Path(scratch, "input")
        # what it imports counts for no input
        folder.mkdir()
        KINDS[kind].write(folder, None)
        KINDS[kind].read(folder)
        shutil.rmtree(folder)
        for number in range(int(first), int(last)):
            print(number, flush=True)
            folder.mkdir()
            wrong = tried(kind, number, folder)
            if wrong is not None:
                print(json.dumps(wrong), flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
