"""Files written whole or not at all; sizes and paths as sentences have them."""

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from posexport.errors import PosexportError

#: the folders of an absolute path
_FOLDERS = re.compile(r"(?<![\w.:/])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:;,'\"]+[/\\])+")


#: bytes that a place must take before the work for it begins
_PROBE = 1 << 16


def probe(folder: Path) -> None:
    """Write a small file into ``folder`` and remove it; OSError where the disk is full or read-only."""
    path = folder / f".posexport-{secrets.token_hex(4)}"
    try:
        path.write_bytes(bytes(_PROBE))
    finally:
        path.unlink(missing_ok=True)


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a path that cannot become a file, or where one would be lost; PosexportError says what to do."""
    _check_name(path, force=force)
    with _as_sentence(path):
        probe(path.parent)


@contextlib.contextmanager
def _as_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise PosexportError(f"cannot write {path}: {err.strerror}; choose another place") from err


def _check_name(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise PosexportError(f"{path} is a directory; give the name of a file")
    if os.path.lexists(path) and (not force or not path.is_file()):
        raise PosexportError(f"{path} already exists; give --force to replace it or choose another name")
    if not path.parent.is_dir():
        raise PosexportError(f"cannot write {path}: {path.parent} is not a directory; make it or choose another place")


@contextlib.contextmanager
def written_whole(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write that becomes ``path`` at the end, or leaves nothing after an error.

    Raises PosexportError for what `check_free` refuses and for failures of the disk.
    """
    _check_name(path, force=force)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with _as_sentence(path):
        try:
            with temporary.open("xb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, *, force: bool) -> None:
    """Write ``path`` whole or not at all; an existing file needs ``force``. Raises as `written_whole` does."""
    with written_whole(path, force=force) as file:
        file.write(data)


def aside(prefix: str, text: str) -> Path | None:
    """A new file with ``text`` in the system's directory of temporary files; None where it cannot be written."""
    try:
        handle, path = tempfile.mkstemp(prefix=prefix, suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return Path(path)


def without_folders(sentence: str, source: object) -> str:
    """A remark without the folders of this machine: paths below ``source``, and absolute ones, by their last parts.

    Example:
        >>> without_folders("/home/me/bert/config.json sets x, see /etc/hosts", "/home/me/bert")
        'config.json sets x, see hosts'
    """
    if isinstance(source, str) and source.strip("/\\."):
        folder = re.escape(source.rstrip("/\\"))
        sentence = re.sub(rf"{folder}[/\\]", "", sentence)
    return _FOLDERS.sub("", sentence)


def size_text(size: int) -> str:
    """Bytes as people read them.

    Example:
        >>> size_text(788_300), size_text(91_500_000)
        ('788.3 kB', '91.5 MB')
    """
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB") if size >= 1e6 else (1e3, "kB")
    return f"{size / unit:.1f} {name}"
