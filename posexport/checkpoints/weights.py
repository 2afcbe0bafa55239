"""Reads weights tensor by tensor, so that loading needs little more memory than the weights themselves.

safetensors: the library checks the header, the offsets and the file's length; the bytes are then read straight into the
parameter. Of a checkpoint that is large the float32 tensors are not read but mapped, and read when they are needed.
``.bin`` is a pickle: read only when allowed, by ``torch.load(weights_only=True)``.
"""

import functools
import hashlib
import json
import math
import mmap
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from posexport.base.targets.dtypes import FLOATS, INT64
from posexport.checkpoints.directory import Directory
from posexport.errors import PosexportError
from posexport.sources import memory_mapped

#: by safetensors' names
DTYPES = {dtype.safetensors: dtype.torch for dtype in FLOATS}
#: of tables of indices, and of weights of 4 bits, eight in an int32 or two in a byte
_WITH_INTEGERS = {**DTYPES, INT64.safetensors: INT64.torch, "I32": torch.int32, "U8": torch.uint8}
_POINTER = b"version https://git-lfs"


class Reader(Protocol):
    """A file of weights that reads tensors by name."""

    shapes: dict[str, list[int]]
    dtypes: dict[str, torch.dtype | None]

    def read(self, name: str) -> Tensor:
        """Reads a tensor into new memory, in the file's dtype."""
        ...

    def as_pages(self, name: str) -> nn.Parameter | None:
        """A tensor of the dtype in the file as pages of it; None where that cannot be, and for a small one."""
        ...


class Safetensors:
    """A .safetensors file; a dtype that is no plain floating-point number, int64, int32 or uint8 is None."""

    def __init__(self, path: Path, label: str) -> None:
        self._path, self._label = path, label
        try:
            # opened first, as the library calls whatever it may not read a missing file
            with path.open("rb") as file, safe_open(path, framework="pt"):
                length = int.from_bytes(file.read(8), "little")
                header: dict[str, Any] = json.loads(file.read(length))
        except PermissionError as err:
            raise PosexportError(f"{label} cannot be read: {err.strerror}; make it readable") from err
        except (SafetensorError, OSError, ValueError) as err:
            raise PosexportError(f"{label} is not a whole safetensors file ({err}): {_advice(path)}") from err
        header.pop("__metadata__", None)
        self.shapes = {name: entry["shape"] for name, entry in header.items()}
        self.dtypes = {name: _WITH_INTEGERS.get(entry["dtype"]) for name, entry in header.items()}
        self._ranges = {name: [8 + length + end for end in entry["data_offsets"]] for name, entry in header.items()}

    def read(self, name: str) -> Tensor:
        """Reads a tensor into new memory, in the file's dtype."""
        start, end = self._ranges[name]
        out = torch.empty(self.shapes[name], dtype=self.dtypes[name])
        with self._path.open("rb") as file:
            file.seek(start)
            got = file.readinto(out.view(-1).view(torch.uint8).numpy().data) if end > start else 0
        if got != end - start:
            raise PosexportError(
                f"{self._label} ended inside {name}, at {start + got} bytes: it changed while being read"
            )
        return out

    def as_pages(self, name: str) -> nn.Parameter | None:
        """As `Reader.as_pages`, of real numbers alone."""
        (start, end), dtype = self._ranges[name], self.dtypes[name]
        if dtype is None or not dtype.is_floating_point or end - start < memory_mapped.LEAST:
            return None
        if end > len(self._map):
            raise PosexportError(
                f"{self._label} ended inside {name}, at {len(self._map)} bytes: it changed while being read"
            )
        return memory_mapped.view(self._map, start, self.shapes[name], dtype)

    @functools.cached_property
    def _map(self) -> mmap.mmap:
        with self._path.open("rb") as file:
            return memory_mapped.open_map(file)


class Pickle:
    """A .bin file, read with ``weights_only``."""

    def __init__(self, path: Path, label: str) -> None:
        try:
            # only the newer, zipped form can be mapped
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except PermissionError as err:
            raise PosexportError(f"{label} cannot be read: {err.strerror}; make it readable") from err
        except pickle.UnpicklingError as err:
            # torch's message advises to run arbitrary code from the file
            raise PosexportError(
                f"{label} cannot be read with weights only: it holds something else than tensors, or is damaged; "
                "ask its author for a safetensors file"
            ) from err
        except Exception as err:
            reason = str(err).strip().splitlines()[0][:200] if str(err).strip() else type(err).__name__
            raise PosexportError(f"{label} cannot be read with weights only ({reason}): {_advice(path)}") from err
        whole = isinstance(loaded, dict) and all(
            isinstance(name, str) and isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta
            for name, value in loaded.items()
        )
        if not whole:
            raise PosexportError(f"{label} is not a table of dense tensors by name, as a state dict is")
        self._tensors: dict[str, Tensor] = loaded
        self.shapes = {name: list(tensor.shape) for name, tensor in loaded.items()}
        known = _WITH_INTEGERS.values()
        self.dtypes = {name: t.dtype if t.dtype in known else None for name, t in loaded.items()}

    def read(self, name: str) -> Tensor:
        """Reads a tensor into new memory, in the file's dtype."""
        return self._tensors[name].detach().clone(memory_format=torch.contiguous_format)

    def as_pages(self, name: str) -> nn.Parameter | None:
        """None: a pickle is a container that cannot be mapped tensor by tensor."""
        return None


class Below:
    """A file of weights that prefixes its tensors' names with a folder."""

    def __init__(self, folder: str, reader: Reader) -> None:
        self._folder, self._reader = folder, reader
        self.shapes = {folder + name: shape for name, shape in reader.shapes.items()}
        self.dtypes = {folder + name: dtype for name, dtype in reader.dtypes.items()}

    def read(self, name: str) -> Tensor:
        """Reads a tensor into new memory, in the file's dtype."""
        return self._reader.read(name.removeprefix(self._folder))

    def as_pages(self, name: str) -> nn.Parameter | None:
        """As `Reader.as_pages`."""
        return self._reader.as_pages(name.removeprefix(self._folder))


@dataclass(frozen=True)
class Weights:
    """All tensors of a checkpoint. ``files``: name to path of each file that was read, indices included.

    ``needless``: tensors that need not be used, such as biases of zeros that a quantizer gave every layer.
    """

    label: str
    files: dict[str, Path]
    readers: dict[str, Reader]
    shapes: dict[str, list[int]]
    dtypes: dict[str, torch.dtype | None]
    needless: frozenset[str] = frozenset()

    def read(self, name: str, *, integers: bool = False) -> Tensor:
        """A finite tensor in the file's dtype; PosexportError for NaN, infinity and formats other than `DTYPES`.

        ``integers``: int64, int32 and uint8 will do too.
        """
        if self.dtypes[name] not in (_WITH_INTEGERS if integers else DTYPES).values():
            raise PosexportError(f"{self.label}: {name} is stored in a format other than {', '.join(DTYPES)}")
        tensor = self.readers[name].read(name)
        self._check_finite(name, tensor)
        return tensor

    def as_pages(self, name: str) -> nn.Parameter | None:
        """A finite tensor that takes no memory until it is read; None: as of `Reader.as_pages`."""
        parameter = self.readers[name].as_pages(name)
        if parameter is not None:
            self._check_finite(name, parameter)
            memory_mapped.release([parameter])
        return parameter

    def beside(self, folder: str, other: "Weights") -> "Weights":
        """Merges these tensors with the tensors of another folder of the checkpoint, prefixed with ``folder``."""
        return Weights(
            self.label,
            self.files | other.files,
            self.readers | {folder + name: Below(folder, reader) for name, reader in other.readers.items()},
            self.shapes | {folder + name: shape for name, shape in other.shapes.items()},
            self.dtypes | {folder + name: dtype for name, dtype in other.dtypes.items()},
        )

    def _check_finite(self, name: str, tensor: Tensor) -> None:
        if tensor.numel() and not all(math.isfinite(end) for end in torch.aminmax(tensor)):
            raise PosexportError(f"{self.label}: {name} holds NaN or infinity; such a model computes nothing")


def open_weights(directory: Directory, below: str, *, allow_pickle: bool) -> Weights:
    """The weights in the folder ``below`` of a directory: safetensors, single or sharded, else .bin if allowed."""
    for suffix, stem in ((".safetensors", "model"), (".bin", "pytorch_model")):
        single, index = f"{below}{stem}{suffix}", f"{below}{stem}{suffix}.index.json"
        # one file, or an index with shards
        file = directory.find(single)
        indexed = directory.find(index)
        if file is None and indexed is None:
            continue
        if suffix == ".bin" and not allow_pickle:
            raise PosexportError(
                f"{directory.path} has its weights as .bin, a pickle; if you trust it use --allow-pickle, "
                f"or save it as model.safetensors"
            )
        if file is not None:
            return _joined(directory, {single: file}, {single: file}, suffix, None)
        assert indexed is not None
        # every shard of the index must be there
        where = _weight_map(directory, index, suffix)
        files = {below + name: directory.find(below + name) for name in sorted(set(where.values()))}
        if absent := [name for name, path in files.items() if path is None]:
            raise PosexportError(
                f"{directory.path} lacks {first_few(absent)} which {index} lists: download the missing files"
            )
        present = {name: path for name, path in files.items() if path is not None}
        expected = {tensor: below + name for tensor, name in where.items()}
        return _joined(directory, present, {index: indexed, **present}, suffix, expected)
    raise PosexportError(
        f"{directory.path}/{below} has no weights: it needs model.safetensors, "
        f"or model.safetensors.index.json with its shards"
    )


def open_file(directory: Directory, name: str) -> Weights:
    """The weights in one file, safetensors or a pickle, which must be there; a pickle only where the user allows it."""
    path = directory.find(name)
    assert path is not None
    return _joined(directory, {name: path}, {name: path}, path.suffix, None)


def _joined(
    directory: Directory, shards: dict[str, Path], files: dict[str, Path], suffix: str, expected: dict[str, str] | None
) -> Weights:
    readers: dict[str, Reader] = {}
    shard_of: dict[str, str] = {}
    for name, path in shards.items():
        label = f"{directory.path}/{name}"
        reader = Safetensors(path, label) if suffix == ".safetensors" else Pickle(path, label)
        for tensor in reader.shapes:
            if tensor in shard_of:
                raise PosexportError(
                    f"{directory.path}: {tensor} is in {shard_of[tensor]} and in {name}; keep one of them"
                )
            shard_of[tensor], readers[tensor] = name, reader
    if not shard_of:
        raise PosexportError(f"{directory.path}: {', '.join(shards)} holds no tensors: download it again")
    if expected is not None and expected != shard_of:
        absent = sorted(set(expected) - set(shard_of))
        extra = sorted(set(shard_of) - set(expected))
        moved = sorted(name for name in set(shard_of) & set(expected) if shard_of[name] != expected[name])
        raise PosexportError(
            f"{directory.path}: the index and its shards disagree: {len(absent)} tensors are only in the index "
            f"({first_few(absent)}), {len(extra)} only in the shards ({first_few(extra)}), {len(moved)} in another "
            f"shard ({first_few(moved)}); download the checkpoint again"
        )
    shapes = {tensor: reader.shapes[tensor] for tensor, reader in readers.items()}
    dtypes = {tensor: reader.dtypes[tensor] for tensor, reader in readers.items()}
    return Weights(str(directory.path), files, readers, shapes, dtypes)


def _weight_map(directory: Directory, index: str, suffix: str) -> dict[str, str]:
    content = directory.json(index)
    where = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(where, dict) or not where or not all(isinstance(name, str) for name in where.values()):
        raise PosexportError(f"{directory.path}/{index} has no weight_map from tensors to files: download it again")
    for name in where.values():
        if "/" in name or "\\" in name or not name.endswith(suffix):
            raise PosexportError(
                f"{directory.path}/{index} names the file {name!r:.80}; shards are {suffix} files in the same directory"
            )
    return where


def _advice(path: Path) -> str:
    try:
        with path.open("rb") as file:
            pointer = file.read(len(_POINTER)) == _POINTER
    except OSError:
        return "make it readable"
    return "it is a Git LFS pointer, fetch the file itself with git lfs pull" if pointer else "download it again"


def first_few(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def sha256(files: Directory, weights: Mapping[str, Path], configurations: Sequence[str]) -> str:
    """The digest of files of weights (paths by name) and of ``configurations`` in ``files``, by their names."""
    paths = dict(weights)
    for name in configurations:
        path = files.find(name)
        if path is not None:
            paths[name] = path
    digest = hashlib.sha256()
    for name, path in sorted(paths.items()):
        with path.open("rb") as file:
            digest.update(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n".encode())
    return digest.hexdigest()
