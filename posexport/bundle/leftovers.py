"""Temporary directories next to an output: their names, their locks, and how abandoned ones are cleaned up.

``.NAME.posexport-PID-RANDOM`` is a bundle being written, or the one it replaced until that is removed. The same with
``.old`` is the replaced bundle between two renames, on systems without an atomic exchange; if the process was killed
there, the next run renames it back.

The writer keeps a lock on its directory as long as it lives. It counts as abandoned when no process has its
number and no process, on this machine or in another container on the same disk, holds its lock.
"""

import contextlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

OLD = ".old"


def create(parent: Path, name: str) -> Path:
    """A new empty temporary directory for the bundle ``name``, with the permissions that the user's umask gives."""
    path = parent / f".{name}.posexport-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir()
    return path


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


def clean(parent: Path, name: str) -> None:
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
