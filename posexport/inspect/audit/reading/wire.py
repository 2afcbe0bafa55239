"""Copies an ONNX file without its weights: large tensors become references to the bytes of the file itself.

protobuf's parser holds a message of 500 MB twice in memory. This walk over the wire format [1] reads tags and lengths
only, checks each length against the message that it is in, and leaves out what is longer than `INLINE`.

[1] https://protobuf.dev/programming-guides/encoding
"""

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

from posexport.errors import PosexportError

#: bytes of tensors that stay in the message: shapes, scales, small tables
INLINE = 1024
#: messages in messages; protobuf's parser has the same limit
_DEPTH = 100
#: nodes of a graph, elements of a tensor that is written one by one
_FIELDS_OF_A_MESSAGE = 2_000_000
#: wire types
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

#: message -> field number -> the message in that field. Only these can hold tensors.
_FIELDS: Mapping[str, Mapping[int, str]] = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "Sparse"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "Sparse", 23: "Sparse"},
    "Sparse": {1: "Tensor", 2: "Tensor"},
    "Tensor": {},
}
#: of TensorProto
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14

Buffer = bytes | mmap.mmap


def without_weights(path: Path) -> bytes:
    """The model in ``path``, a serialized ModelProto, in which ``raw_data`` of large tensors is external data.

    Its location is the file itself, with the offset of these bytes.

    Raises:
        PosexportError: the file is empty or no protobuf message.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        if not size:
            raise PosexportError(f"{path} is empty, which is no ONNX model; download or export it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return b"".join(_copied(data, 0, size, "Model", path.name, 0))
            except _DamagedError as err:
                raise PosexportError(
                    f"{path} is no ONNX model, or it is damaged: {err}; download or export it again"
                ) from err


class _DamagedError(Exception):
    """What is wrong with the bytes, as a clause."""


def _copied(data: Buffer, start: int, end: int, kind: str, name: str, depth: int) -> Iterator[bytes]:
    """The message of ``kind`` in ``data[start:end]``, in parts."""
    if depth > _DEPTH:
        raise _DamagedError(f"messages are nested more than {_DEPTH} deep")
    inner = _FIELDS[kind]
    copied = start
    for number, tag, begin, after in _lengths(data, start, end):
        if after - begin <= INLINE:
            continue
        if kind == "Tensor" and number == _RAW_DATA:
            replaced = _reference(name, begin, after - begin)
        elif number in inner:
            content = b"".join(_copied(data, begin, after, inner[number], name, depth + 1))
            replaced = _tag(number) + _varint(len(content)) + content
        else:
            continue
        yield data[copied:tag]
        yield replaced
        copied = after
    yield data[copied:end]


def _lengths(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Every length-delimited field of a message: its number, where its tag, its content and the next field start."""
    position, fields = start, 0
    while position < end:
        tag = position
        key, position = _read_varint(data, position, end)
        wire, number = key & 7, key >> 3
        if not number:
            raise _DamagedError(f"field number 0 at byte {tag}")
        if (fields := fields + 1) > _FIELDS_OF_A_MESSAGE:
            raise _DamagedError(f"a message has more than {_FIELDS_OF_A_MESSAGE} fields")
        if wire == _BYTES:
            length, position = _read_varint(data, position, end)
            if length > end - position:
                raise _DamagedError(f"a field at byte {tag} has {length} bytes where {end - position} are left")
            yield number, tag, position, position + length
            position += length
        else:
            position = _skip(data, position, end, wire)


def _skip(data: Buffer, position: int, end: int, wire: int) -> int:
    """The position after a field without length."""
    if wire == _VARINT:
        return _read_varint(data, position, end)[1]
    size = {_FIXED64: 8, _FIXED32: 4}.get(wire)
    if size is None or size > end - position:
        raise _DamagedError(f"wire type {wire} at byte {position}")
    return position + size


def _read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
    raise _DamagedError(f"a number without an end at byte {position}")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _tag(number: int, wire: int = _BYTES) -> bytes:
    return _varint(number << 3 | wire)


def _reference(name: str, offset: int, length: int) -> bytes:
    """Fields of a TensorProto: its data is ``length`` bytes of the file ``name`` from ``offset`` on."""
    fields = b""
    for key, value in (("location", name), ("offset", str(offset)), ("length", str(length))):
        # StringStringEntryProto: key = 1, value = 2
        entry = b"".join(_tag(index) + _varint(len(text)) + text for index, text in _texts(key, value))
        fields += _tag(_EXTERNAL_DATA) + _varint(len(entry)) + entry
    return fields + _tag(_DATA_LOCATION, _VARINT) + _varint(1)


def _texts(key: str, value: str) -> Iterator[tuple[int, bytes]]:
    yield 1, key.encode()
    yield 2, value.encode()
