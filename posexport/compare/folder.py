"""The directory of a comparison: what may stand in it, what was finished there, and how it goes on.

::

    setup.json       what the figures were asked for with; another setup does not go on here
    results/NAME.json    one encoding, written when it is finished
    models/NAME.onnx     its trained model
    compare.csv, compare.json, compare.html
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from posexport.bundle.leftovers import held
from posexport.compare.records import Result, Setup
from posexport.errors import PosexportError
from posexport.files import write_whole

SETUP = "setup.json"
TABLES = ("compare.csv", "compare.json", "compare.html")
RESULTS, MODELS = "results", "models"
#: what `write_whole` leaves if it is killed
_LEFT = re.compile(r"\..+\.[0-9a-f]{8}")


class Folder:
    """An open directory; made by `opened`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def model(self, encoding: str) -> Path:
        return self.path / MODELS / f"{encoding}.onnx"

    def _result(self, encoding: str) -> Path:
        return self.path / RESULTS / f"{encoding}.json"

    def finished(self, encoding: str) -> Result | None:
        """What an earlier run found; None if it did not come so far, or if its files are gone or damaged."""
        try:
            result = msgspec.json.decode(self._result(encoding).read_bytes(), type=Result)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return result if self.model(encoding).is_file() else None

    def keep(self, result: Result) -> None:
        data = msgspec.json.format(msgspec.json.encode(result), indent=1)
        write_whole(self._result(result.encoding), data + b"\n", force=True)

    def write(self, name: str, data: bytes) -> None:
        write_whole(self.path / name, data, force=True)


@contextlib.contextmanager
def opened(path: Path, setup: Setup, *, force: bool) -> Iterator[Folder]:
    """The directory, made if it is missing, with the results that belong to ``setup``.

    ``force`` begins again: results and models that are there are removed.

    Raises:
        PosexportError: it holds other things, another setup, or another run is at work in it.
    """
    _check(path)
    for part in (path, path / RESULTS, path / MODELS):
        part.mkdir(parents=True, exist_ok=True)
    with held(path) as free:
        if not free:
            raise PosexportError(f"another run is writing {path}; wait for it or choose another directory")
        if force:
            _clear(path)
        elif (path / SETUP).exists():
            _same(path, setup)
        for left in (p for p in path.rglob(".*") if _LEFT.fullmatch(p.name)):
            left.unlink()
        write_whole(path / SETUP, msgspec.json.format(msgspec.json.encode(setup), indent=1) + b"\n", force=True)
        yield Folder(path)


def _check(path: Path) -> None:
    """Refuse what is not a comparison's directory, or a new one."""
    if path.exists() and not path.is_dir():
        raise PosexportError(f"{path} is a file; the output is a directory: choose another name")
    above = next((p for p in (path, *path.parents) if p.exists()), None)
    if above is not None and not above.is_dir():
        raise PosexportError(f"cannot make {path}: {above} is not a directory; choose another output")
    if not path.exists():
        return
    own = {SETUP, *TABLES, RESULTS, MODELS}
    strange = sorted(p.name for p in path.iterdir() if p.name not in own and not _LEFT.fullmatch(p.name))
    if strange:
        shown = f"{', '.join(strange[:3])}{' ...' if strange[3:] else ''}"
        raise PosexportError(f"{path} holds other things ({shown}); give a new directory or one that compare made")


def _same(path: Path, setup: Setup) -> None:
    """Refuse to go on with another setup; the first difference is named."""
    again = "give --force to begin again there, or choose another directory"
    try:
        found = msgspec.json.decode((path / SETUP).read_bytes(), type=Setup)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise PosexportError(
            f"{path / SETUP} cannot be read ({err}), so it is not known what is there: {again}"
        ) from err
    was, now = _flat(found), _flat(setup)
    for key in now | was:
        if was.get(key) != now.get(key):
            raise PosexportError(f"{path} was made with {key}={was.get(key)}, this run has {now.get(key)}: {again}")


def _flat(setup: Setup) -> dict[str, object]:
    fields = msgspec.to_builtins(setup)
    tools = fields.pop("tools")
    return {**fields, **{f"{tool} version": version for tool, version in tools.items()}}


def _clear(path: Path) -> None:
    for part, suffix in ((RESULTS, "*.json"), (MODELS, "*.onnx")):
        for file in (path / part).glob(suffix):
            file.unlink()
