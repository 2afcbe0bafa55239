"""Reads a bundle's manifest and checks the hashes of its files."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import msgspec

from posexport.base.targets.precisions import PrecisionName
from posexport.errors import PosexportError
from posexport.run.bundle.manifest import LARGEST, MANIFEST, Manifest, decode
from posexport.run.bundle.variants import manifest_of


def read(directory: Path, precision: PrecisionName | None = None) -> Manifest:
    """The manifest of the bundle in ``directory``, for ``precision`` or for its first precision (None).

    Raises:
        PosexportError: no bundle, a damaged manifest, or another version of the format.
    """
    first = _decoded(directory)
    try:
        name = manifest_of(first, precision)
    except PosexportError as err:
        raise PosexportError(f"{directory}: {err}") from None
    if name == MANIFEST:
        return first
    check_hashes(directory, msgspec.structs.replace(first, files={name: first.files[name]}))
    return _decoded(directory, name)


def _decoded(directory: Path, name: str = MANIFEST) -> Manifest:
    if not directory.exists():
        raise PosexportError(f"{directory} does not exist; give a directory that posexport convert wrote")
    if not directory.is_dir():
        raise PosexportError(f"{directory} is a file; give a directory that posexport convert wrote")
    if not (directory / MANIFEST).is_file():
        raise PosexportError(f"{directory} is not a bundle: it has no {MANIFEST}; make one with posexport convert")
    path = locate(directory, name)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as err:
        raise PosexportError(f"cannot read {directory / name}: {err.strerror}") from err
    try:
        return decode(data)
    except PosexportError as err:
        raise PosexportError(f"cannot use {directory / name}: {err}") from err


def check_hashes(directory: Path, manifest: Manifest) -> None:
    """Compare every listed file with its size and sha256.

    Raises:
        PosexportError: naming the first file that is missing, altered, not a file, or a link that leaves the bundle.
    """
    for name, entry in manifest.files.items():
        path = locate(directory, name)
        try:
            size = path.stat().st_size
            digest = sha256(path) if size == entry.size else None
        except OSError as err:
            raise PosexportError(f"cannot read {directory / name}: {err.strerror}") from err
        advice = "copy or convert the bundle again"
        if digest is None:
            raise PosexportError(
                f"{directory / name} has {size} bytes, the manifest says {entry.size}: it was cut or altered; {advice}"
            )
        if digest != entry.sha256:
            raise PosexportError(
                f"{directory / name} has sha256 {digest}, the manifest says {entry.sha256}: it was altered; {advice}"
            )


def locate(directory: Path, name: str) -> Path:
    """The real path of the bundle's file ``name``.

    A symbolic link may lead elsewhere in the bundle, or, as in a Hugging Face cache, from ``ENTRY/snapshots/...`` into
    ``ENTRY/blobs``. Raises PosexportError if the file is missing, not a regular file or a link to any other place.
    """
    try:
        root = directory.resolve(strict=True)
        path = (root / name).resolve(strict=True)
        regular = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        raise PosexportError(f"{directory / name} is missing; copy or convert the bundle again") from None
    except (OSError, RuntimeError) as err:  # a loop of links is a RuntimeError before Python 3.13
        raise PosexportError(f"cannot read {directory / name}: {err}") from err
    if not path.is_relative_to(root) and not any(path.is_relative_to(blobs) for blobs in _blobs(root)):
        raise PosexportError(f"{directory / name} is a link that leaves the bundle, to {path}; copy the file itself")
    if not regular:
        raise PosexportError(f"{directory / name} is not a regular file; copy or convert the bundle again")
    return path


def _blobs(root: Path) -> list[Path]:
    """Directories ``blobs`` of a Hugging Face cache, to which links in its ``snapshots`` lead."""
    return [(parent.parent / "blobs").resolve() for parent in root.parents if parent.name == "snapshots"]


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_object(directory: Path, manifest: Manifest, name: str) -> dict[str, Any]:
    """The object in a JSON file of a bundle; empty if the bundle does not have the file."""
    if name not in manifest.files:
        return {}
    try:
        content = json.loads(locate(directory, name).read_bytes())
    except (ValueError, RecursionError) as err:
        raise PosexportError(f"cannot use {directory / name}: {err}; convert again with a sound one") from err
    return content if isinstance(content, dict) else {}
