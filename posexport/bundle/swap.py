"""Renames a finished directory to its final name; readers see the old or the new one, never a mixture."""

import contextlib
import ctypes
import errno
import os
import sys
from pathlib import Path

_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
#: error codes of a kernel or file system that does not know the flag
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


def place(new: Path, target: Path) -> None:
    """Rename ``new`` to ``target``, which must not exist: FileExistsError if it does."""
    if not _renameat2(new, target, _NOREPLACE):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        new.rename(target)


def exchange(new: Path, target: Path, aside: Path) -> None:
    """Put ``new`` under the name ``target``; the directory that was there gets the name ``new``.

    In one step where the system can (Linux). Elsewhere the old directory is called ``aside`` for an instant; whatever
    interrupts that instant, but not a kill, puts it back, and `posexport.bundle.leftovers` does so after a kill.
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
