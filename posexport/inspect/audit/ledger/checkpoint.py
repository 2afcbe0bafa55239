"""Reads the tensors of a checkpoint of safetensors files, without PyTorch.

https://huggingface.co/docs/safetensors: 8 bytes with the header's length, the header in JSON, the data.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.bundle.read import locate

#: of a header; the library has the same limit
_MOST_OF_A_HEADER = 100 << 20
_TYPES: Mapping[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
_FLOATS = frozenset(["F64", "F32", "F16", "BF16"])


class _Header(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: its type, shape and bytes; nothing is read before `array`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def is_float(self) -> bool:
        """Whether it is of a floating-point type that weights have, and not quantized."""
        return self.dtype in _FLOATS

    def array(self) -> NDArray[Any]:
        """The tensor, mapped from the file."""
        return np.memmap(self.path, dtype=_TYPES[self.dtype], mode="r", offset=self.offset, shape=self.shape)


def read_checkpoint(path: Path) -> dict[str, Stored]:
    """All tensors of a .safetensors file, or of a folder with one, with several, or with folders of modules.

    Tensors of a module (``2_Dense`` of sentence-transformers) have its folder in front of their names.

    Raises:
        PosexportError: no safetensors file, or a damaged one.
    """
    if path.is_file() and path.suffix == ".safetensors":
        return dict(_tensors(path))
    if not path.is_dir():
        raise PosexportError(f"--against {path}: no such folder or .safetensors file; give a checkpoint's folder")
    tensors: dict[str, Stored] = {}
    for file in _files(path):
        below = "" if file.parent == path else f"{file.parent.relative_to(path).as_posix()}/"
        tensors.update({below + name: tensor for name, tensor in _tensors(file)})
    if tensors:
        return tensors
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in path.glob(pattern))
    if pickles:
        raise PosexportError(
            f"--against {path} has {pickles[0]}, a pickle, which audit does not read; save it as safetensors "
            "(model.save_pretrained(DIR) of transformers) and give that folder"
        )
    raise PosexportError(f"--against {path} has no .safetensors file; give a checkpoint's folder")


def _files(path: Path) -> Sequence[Path]:
    """The files of a folder: adapters and optimizer states are no weights of the model."""
    here = [file for file in path.glob("*.safetensors") if not file.name.startswith(("adapter", "optimizer", "parity"))]
    whole = [file for file in here if file.name == "model.safetensors"]
    below = [file for file in path.glob("*/model.safetensors") if file.parent.name[:1].isdigit()]
    return sorted(whole or here) + sorted(below)


def _tensors(path: Path) -> Iterator[tuple[str, Stored]]:
    try:
        path = locate(path.parent, path.name)
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size - 8, _MOST_OF_A_HEADER):
                raise _DamagedError(f"its header has {length} bytes, the file {size}")
            header = msgspec.json.decode(file.read(length), type=dict[str, Any])
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, _checked(path, name, msgspec.convert(entry, _Header), 8 + length, size)
    except (_DamagedError, msgspec.MsgspecError, OSError, RecursionError) as err:
        raise PosexportError(f"{path} is not a whole safetensors file ({err}): download it again") from err


class _DamagedError(Exception):
    """What is wrong with the bytes, as a clause."""


def _checked(path: Path, name: str, header: _Header, start: int, size: int) -> Stored:
    if header.dtype not in _TYPES:
        raise _DamagedError(f"{name!r} has the unknown type {header.dtype!r:.20}")
    begin, end = header.data_offsets
    expected = math.prod(header.shape) * np.dtype(_TYPES[header.dtype]).itemsize
    if min(header.shape, default=0) < 0 or begin < 0 or end - begin != expected or start + end > size:
        raise _DamagedError(f"{name!r} of shape {header.shape} does not fit bytes {begin} to {end} of {size}")
    return Stored(path, header.dtype, tuple(header.shape), start + begin)
