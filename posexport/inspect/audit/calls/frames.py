"""Named arrays through a pipe: types, shapes and bytes. No pickle, since the other end runs a stranger's graph."""

import struct
from collections.abc import Mapping
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct("<Q")
Arrays = dict[str, NDArray[Any]]


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """An array: NumPy's name of its type, its shape, its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A request or a reply.

    Attributes:
        tensors: by name.
        level: of a request: how far ONNX Runtime optimises the graph, see `posexport.run.providers.LEVELS`.
        failure: of a reply: what ONNX Runtime raised, in one line; empty: it did not.
        model: of a request: another graph than the file, serialized; weights in the file's folder.
    """

    tensors: dict[str, Tensor] = {}
    level: str = "all"
    failure: str = ""
    model: bytes = b""


def packed(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Converts arrays to tensors of a frame."""
    return {
        name: Tensor(array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes())
        for name, array in arrays.items()
    }


def unpacked(tensors: Mapping[str, Tensor]) -> Arrays:
    """Tensors of a frame as arrays; ValueError where sizes and bytes do not belong together."""
    return {
        name: np.frombuffer(tensor.data, np.dtype(tensor.dtype)).reshape(tensor.shape)
        for name, tensor in tensors.items()
    }


def write(stream: IO[bytes], frame: Frame) -> None:
    data = msgspec.msgpack.encode(frame)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read(stream: IO[bytes], most: int) -> Frame:
    """The next frame; EOFError at the end of the stream, ValueError for one of more than ``most`` bytes."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    if size > most:
        raise ValueError(f"a message of {size} bytes")
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return msgspec.msgpack.decode(data, type=Frame)
