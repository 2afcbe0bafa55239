"""The directory of a bundle: whether it may be written to, temporary directories next to it, and the rename at the end.

What Ctrl-C leaves is removed by `posexport.run.bundle.write.staged`, what a killed process leaves by the next run.

``.NAME.posexport-PID-RANDOM`` is a bundle being written, or the one it replaced until that is removed. The same with
``.old`` is the replaced bundle between two renames, on systems without an atomic exchange; if the process was killed
there, the next run renames it back.

The writer keeps a lock on its directory as long as it lives. It counts as abandoned when no process has its
number and no process, on this machine or in another container on the same disk, holds its lock.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from posexport.errors import PosexportError
from posexport.run.bundle.manifest import MANIFEST
from posexport.run.bundle.read import read

_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
#: error codes of a kernel or file system that does not know the flag
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


def place_directory(new: Path, target: Path) -> None:
    """Rename ``new`` to ``target``, which must not exist: FileExistsError if it does."""
    if not _renameat2(new, target, _NOREPLACE):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        new.rename(target)


def exchange(new: Path, target: Path, aside: Path) -> None:
    """Put ``new`` under the name ``target``; the directory that was there gets the name ``new``.

    In one step where the system can (Linux). Elsewhere the old directory is called ``aside`` for an instant; whatever
    interrupts that instant, but not a kill, puts it back, and `posexport.run.bundle.directory` does so after a kill.
    """
    if _renameat2(new, target, _EXCHANGE):
        return
    try:
        target.rename(aside)
        new.rename(target)
    except BaseException:
        if not os.path.lexists(target):
            with contextlib.suppress(FileNotFoundError):
                aside.rename(target)
        raise
    finally:
        if os.path.lexists(target) and os.path.lexists(aside):
            aside.rename(new)


def _renameat2(source: Path, target: Path, flag: int) -> bool:
    """Linux's ``renameat2``; False where it does not exist, OSError where it fails."""
    if not sys.platform.startswith("linux"):
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flag)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


if sys.platform != "win32":
    import fcntl

OLD = ".old"


def create_temporary(parent: Path, name: str) -> Path:
    """A new empty temporary directory for the bundle ``name``, with the permissions that the user's umask gives."""
    path = parent / f".{name}.posexport-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir()
    return path


@contextlib.contextmanager
def temporary(parent: Path, name: str) -> Iterator[Path]:
    """A temporary directory in ``parent`` for what becomes ``name``; those that killed runs left are removed first."""
    clean_leftovers(parent, name)
    path = create_temporary(parent, name)
    try:
        with held(path):
            yield path
    finally:
        # the new bundle if it was not moved, otherwise the old one
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock of a temporary directory; yields False if another process holds it, True without locks."""
    if sys.platform == "win32":
        yield True
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield True
    finally:
        os.close(handle)


def clean_leftovers(parent: Path, name: str) -> None:
    """Remove the temporary directories of killed runs for the bundle ``name``, and rename a bundle back."""
    if sys.platform == "win32":  # Windows has no harmless test whether a process lives
        return
    pattern = re.compile(rf"\.{re.escape(name)}\.posexport-(\d+)-[0-9a-f]{{8}}({re.escape(OLD)})?")
    for path in list(parent.iterdir()):
        match = pattern.fullmatch(path.name)
        if not match or path.is_symlink() or not path.is_dir() or _alive(int(match[1])):
            continue
        with contextlib.suppress(OSError), held(path) as free:  # another run may be cleaning too
            if not free:
                continue
            if match[2] and not os.path.lexists(parent / name):
                path.rename(parent / name)
            else:
                shutil.rmtree(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # somebody else's
        return True
    return True


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
