"""Writes a bundle atomically: a directory has the whole bundle or the one before, and no other file is lost."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec

from posexport.base.system.files import probe
from posexport.errors import PosexportError
from posexport.run.bundle.directory import OLD, check_target, exchange, place_directory, temporary
from posexport.run.bundle.manifest import MANIFEST, FileEntry, Manifest, decode, encode
from posexport.run.bundle.read import sha256
from posexport.run.bundle.variants import files_of, variant_file

#: failures of the disk, wherever in a conversion they show
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


@contextlib.contextmanager
def staged(target: Path, *, force: bool) -> Iterator[Path]:
    """A temporary directory to write a bundle into; it takes the name ``target`` when the block ends well.

    It is on the target's file system. If the block ends early (an exception, Ctrl-C, SIGTERM, SIGHUP), it is removed
    and the target stays as it was; after a kill the next run for the same target removes it.
    ``force`` allows to replace a bundle that holds no other files, or an empty directory.

    Raises PosexportError before the block if the target cannot be written or must not be replaced, and in place of an
    OSError of the disk (full, read-only, file too large).
    """
    target = Path(os.path.abspath(target))
    with _disk_errors(target), _signals_as_exceptions() as refuse_if_interrupted:
        check_target(target, force=force)
        parent = next(path for path in target.parents if path.exists())
        with temporary(parent, target.name) as staging:
            probe(staging)
            yield staging
            refuse_if_interrupted()
            _finalize(staging)
            _move(staging, target, force=force)


def seal(
    directory: Path, manifest: Manifest, variants: Sequence[Manifest] = (), proofs: Sequence[str] = ()
) -> Manifest:
    """Hash every file of ``directory`` and write ``posexport.json`` with them; returns the manifest as written.

    ``variants``: manifests of further precisions, also written. ``proofs``: files that each precision has separately.
    """
    files = _hashed(directory)
    listed = files_of(manifest, variants, files, proofs)
    for variant, names in zip(variants, listed, strict=True):
        complete = msgspec.structs.replace(variant, files={name: files[name] for name in sorted(names)})
        _write(directory, variant_file(MANIFEST, variant.precision), complete)
    if variants:
        manifest = msgspec.structs.replace(manifest, variants=[variant.precision for variant in variants])
        files = _hashed(directory)
    return _write(directory, MANIFEST, msgspec.structs.replace(manifest, files=files))


def _hashed(directory: Path) -> dict[str, FileEntry]:
    """Every file of ``directory``, by its name there."""
    files = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{name} is a link or no regular file, it cannot be part of a bundle")
        if path.is_file() and name != MANIFEST:
            files[name] = FileEntry(size=path.stat().st_size, sha256=sha256(path))
    return files


def _write(directory: Path, name: str, manifest: Manifest) -> Manifest:
    data = encode(manifest)
    if decode(data) != manifest:
        raise ValueError("the manifest holds a number that JSON has no form for (NaN or infinity)")
    (directory / name).write_bytes(data)
    return manifest


def _finalize(directory: Path) -> None:
    """Give every file a new file's permissions (ONNX writes weights that only their owner can read), and flush it."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    for path in [*directory.rglob("*"), directory]:
        if path != directory:
            path.chmod(mode if path.is_dir() else mode & 0o666)
        _flush(path)


def _flush(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # directories, on Windows
        return
    try:
        os.fsync(handle)
    except OSError as err:
        if err.errno in _DISK:
            raise
    finally:
        os.close(handle)


def _move(staging: Path, target: Path, *, force: bool) -> None:
    check_target(target, force=force)  # it may have changed since
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        try:
            place_directory(staging, target)
        except FileExistsError as err:
            raise PosexportError(f"{target} was made by another program meanwhile; choose another output") from err
    else:
        exchange(staging, target, staging.with_name(staging.name + OLD))
    _flush(target.parent)


@contextlib.contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Failures to write, as sentences; other OSErrors pass as they are."""
    try:
        yield
    except OSError as err:
        named = [Path(name) for name in (err.filename, err.filename2) if isinstance(name, str | os.PathLike)]
        ours = any(part.startswith(f".{target.name}.posexport-") for path in named for part in path.parts)
        if not ours and err.errno not in _DISK and not any(path in (target, *target.parents) for path in named):
            raise
        if err.errno not in _DISK and not os.path.exists(target):
            raise PosexportError(f"cannot create {target}: {err.strerror}; choose another output") from err
        state = "the bundle that is there is unchanged" if os.path.exists(target) else "nothing is left there"
        advice = "free or choose another disk" if err.errno in _DISK else "choose another output"
        raise PosexportError(f"cannot write {target}: {err.strerror}; {state}: {advice}") from err


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[Callable[[], None]]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into exceptions inside the block, so that cleanup runs.

    The block ends with the interruption even if a library swallows it or raises another error instead: the yielded
    function raises it again.
    """
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        received.append(number)
        raise _interruption(number)

    def refuse_if_interrupted() -> None:
        if received:
            raise _interruption(received[0])

    defaults = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL}
    handlers = {signal.Signals[name]: default for name, default in defaults.items() if hasattr(signal, name)}
    # only the main thread may set handlers, and only default ones are replaced
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    changed = {number: default for number, default in handlers.items() if signal.getsignal(number) is default}
    try:
        for number in changed:
            signal.signal(number, end)
        yield refuse_if_interrupted
    except Exception as err:
        if received:
            raise _interruption(received[0]) from err
        raise
    finally:
        for number, default in changed.items():
            signal.signal(number, default)


def _interruption(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


#: larger than any configuration; larger files are tables, for example a vocabulary
_CONFIGURATION_BYTES = 10_000_000
#: JSON files in which strings are tokens, not paths
_TABLES = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
#: an absolute path of at least two parts, or a path in a home directory
_PATH = re.compile(r"(?:file://)?(?:(?:/[^/\n]+){2,}/?|~[\w.-]*(?:/[^/\n]+)+/?|[A-Za-z]:[\\/][^\n]*|\\\\[^\n]+)")


def copy_without_paths(source: Path, copy: Path) -> None:
    """Copy a file; of a JSON configuration without the keys that hold an absolute path.

    Libraries write them (``_name_or_path``, ``tokenizer_file``). Other files are copied byte by byte.
    """
    if copy.suffix == ".json" and copy.name not in _TABLES and source.stat().st_size <= _CONFIGURATION_BYTES:
        try:
            content = json.loads(source.read_bytes())
        except (ValueError, RecursionError):
            content = None  # the reader of the file reports it
        cleaned = _without_paths(content)
        if cleaned != content:
            copy.write_text(json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
            return
    shutil.copyfile(source, copy)


def _without_paths(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_paths(value) for key, value in content.items() if not _is_path(value)}
    return [_without_paths(item) for item in content] if isinstance(content, list) else content


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and _PATH.fullmatch(value) is not None
