"""Checks whether a bundle may be written to a directory without loss of other files."""

import os
from pathlib import Path

from posexport.bundle.manifest import MANIFEST
from posexport.bundle.read import read
from posexport.errors import PosexportError


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that is no directory or holds files of other kinds.

    Raises:
        PosexportError: in one sentence, with what to do instead.
    """
    while True:
        seen = _identity(target)
        try:
            return _check(target, force=force)
        except PosexportError:
            if _identity(target) == seen:
                raise
            # another run replaced it during the check, which saw files of both


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _check(target: Path, *, force: bool) -> None:
    try:
        str(target).encode()
    except UnicodeEncodeError as err:  # ONNX takes no other path
        raise PosexportError(f"{str(target)!a} is not Unicode; choose another output") from err
    if target.is_symlink():
        raise PosexportError(f"{target} is a symbolic link; give the directory that it leads to ({target.readlink()})")
    if not target.exists():
        above = next(path for path in target.parents if path.exists() or path.is_symlink())
        if not above.is_dir():
            raise PosexportError(f"cannot make {target}: {above} is not a directory; choose another output")
        return
    if not target.is_dir():
        raise PosexportError(f"{target} exists and is a file; the output is a directory: choose another name")
    files = _files(target)
    if not force:
        raise PosexportError(f"{target} already exists; give --force to replace it or choose another output")
    if files:
        _check_replaceable(target, files)


def _files(target: Path) -> set[str]:
    """The files of a bundle, or of an empty directory."""
    files = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir())
    try:
        # one file is enough to know: the target may be a whole home directory
        if not os.path.lexists(target / MANIFEST) and next(files, None) is not None:
            raise PosexportError(
                f"{target} exists and is not a bundle (it has no {MANIFEST}), so it is not replaced; "
                "choose another output"
            )
        return {path.relative_to(target).as_posix() for path in files}
    except OSError as err:
        raise PosexportError(f"cannot read {target}: {err.strerror}; choose another output") from err


def _check_replaceable(target: Path, files: set[str]) -> None:
    """Refuse to replace a directory with files that its manifest does not list."""
    try:
        listed = {MANIFEST, *read(target).files}
    except PosexportError as err:
        raise PosexportError(f"{err}; so {target} is not replaced: remove it or choose another output") from err
    if strange := sorted(files - listed):
        raise PosexportError(
            f"{target} holds {', '.join(strange[:3])}{' ...' if strange[3:] else ''}, no part of the bundle that "
            "is there, so it is not replaced; move that elsewhere or choose another output"
        )
