"""Reads and writes files of arrays and of texts, and computes cosine similarities of embeddings."""

import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.system.files import check_free, written_whole
from posexport.errors import PosexportError

LARGEST_JSON = 64 * 1024 * 1024


def read_arrays(path: Path) -> dict[str, Any]:
    """Inputs by name from ``.npz``, ``.safetensors`` or ``.json`` (an object of nested lists).

    ``-``: standard input, of any of these kinds; pipes likewise.

    Raises PosexportError for another kind of file, and one that is missing, damaged or holds pickled objects.
    """
    readers = {".npz": _npz, ".safetensors": _safetensors, ".json": _json}
    if str(path) == "-" or path.is_fifo():
        return _piped(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    if path.suffix not in readers:
        raise PosexportError(f"{path} is of no known kind; give inputs as {', '.join(readers)}")
    if not path.is_file():
        raise PosexportError(f"{path} does not exist or is not a file; give inputs as {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except OSError as err:
        raise PosexportError(f"cannot read {path}: {err.strerror or err}") from err


def _piped(data: bytes) -> dict[str, Any]:
    """Arrays from piped bytes; the first bytes show the format."""
    if not data.strip():
        raise PosexportError("the inputs that are piped in are empty; give .npz, .safetensors or .json")
    suffix = ".npz" if data.startswith(b"PK") else ".json" if data.lstrip()[:1] in (b"{", b"[") else ".safetensors"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"input{suffix}"
        file.write_bytes(data)
        return read_arrays(file)


def _npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise PosexportError(
                    f"{path} is not an .npz file but one array without a name; write it with numpy.savez"
                )
            return {name: archive[name] for name in archive.files}
    except MemoryError as err:
        raise PosexportError(f"{path} says that it holds more than fits in memory: {err}; give smaller arrays") from err
    except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as err:
        # NumPy's message advises allow_pickle=True, which runs code in the file
        reason = "it holds pickled objects" if "pickle" in str(err) else str(err)
        raise PosexportError(f"{path} is not an .npz file of plain arrays: {reason}") from err


def _safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, KeyError, TypeError) as err:
        raise PosexportError(f"{path} is not a safetensors file that NumPy can hold: {err}") from err


def _json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > LARGEST_JSON:
        raise PosexportError(f"{path} has {path.stat().st_size} bytes, JSON may have {LARGEST_JSON}; give .npz instead")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
        raise PosexportError(f"{path} is not a JSON object of nested lists: {err}") from err


def check_arrays_file(path: Path | None, *, force: bool) -> None:
    """PosexportError for a file that `save_arrays` cannot write; None is none."""
    if path is None:
        return
    if path.suffix != ".npz":
        raise PosexportError(f"{path} must end in .npz")
    check_free(path, force=force)


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], *, force: bool) -> None:
    """Write ``path`` (``.npz``) whole or not at all; an existing file needs ``force``."""
    check_arrays_file(path, force=force)
    with written_whole(path, force=force) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def similarities(x_NC: NDArray[Any]) -> NDArray[np.float64]:
    """Cosine of every pair of rows, [N, N]; 0 with a row of zeros."""
    x_NC = x_NC.astype(np.float64)
    norm_N1 = np.linalg.norm(x_NC, axis=1, keepdims=True)
    unit_NC = np.divide(x_NC, norm_N1, out=np.zeros_like(x_NC), where=norm_N1 > 0)
    cosines: NDArray[np.float64] = unit_NC @ unit_NC.T
    return cosines


#: the name that stands for standard input
STDIN = Path("-")


def read_texts(path: Path) -> list[str]:
    """The lines of a file, or of standard input for ``-``, that are not empty; PosexportError if there are none."""
    name = "standard input" if path == STDIN else str(path)
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        lines = [line.strip() for line in data.decode().splitlines()]
    except OSError as err:
        raise PosexportError(f"cannot read {name}: {err.strerror}; give a file of texts, one a line") from err
    except UnicodeDecodeError as err:
        raise PosexportError(f"{name} is no UTF-8 text (byte {err.start}: {err.reason}); give a text file") from err
    if not any(lines):
        raise PosexportError(f"{name} has no texts; give at least one, one a line")
    return [line for line in lines if line]
