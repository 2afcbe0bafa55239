"""The directory of a comparison: what may be in it, and that one run at a time writes it.

::

    models/NAME.onnx     every encoding's trained model
    compare.csv, compare.json, compare.html
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from posexport.bundle.leftovers import held
from posexport.errors import PosexportError

TABLES = ("compare.csv", "compare.json", "compare.html")
MODELS = "models"


@contextlib.contextmanager
def opened(path: Path, *, force: bool) -> Iterator[None]:
    """The directory, made if it is missing, without what an earlier run wrote: finished tables need ``force``.

    Raises:
        PosexportError: it holds other things or a finished comparison, or another run is at work in it.
    """
    _check(path, force=force)
    (path / MODELS).mkdir(parents=True, exist_ok=True)
    with held(path) as free:
        if not free:
            raise PosexportError(f"another run is writing {path}; wait for it or choose another directory")
        for file in [*(path / MODELS).glob("*.onnx"), *(path / name for name in TABLES)]:
            file.unlink(missing_ok=True)
        yield


def _check(path: Path, *, force: bool) -> None:
    """Refuse what is not a comparison's directory, or a new one."""
    if path.exists() and not path.is_dir():
        raise PosexportError(f"{path} is a file; the output is a directory: choose another name")
    above = next((p for p in (path, *path.parents) if p.exists()), None)
    if above is not None and not above.is_dir():
        raise PosexportError(f"cannot make {path}: {above} is not a directory; choose another output")
    if not path.exists():
        return
    strange = sorted(p.name for p in path.iterdir() if p.name not in {*TABLES, MODELS} and p.name[0] != ".")
    if strange:
        shown = f"{', '.join(strange[:3])}{' ...' if strange[3:] else ''}"
        raise PosexportError(f"{path} holds other things ({shown}); give a new directory or one that compare made")
    if not force and any((path / name).exists() for name in TABLES):
        raise PosexportError(f"{path} holds a comparison; give --force to replace it, or choose another directory")
