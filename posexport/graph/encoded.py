"""Writes a model's protobuf a tensor at a time: protobuf itself needs two more copies of all weights."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

#: fields by the way to the numbers of a model's weights
_WAY = ("graph", "initializer", "raw_data")
_Piece = bytes | onnx.TensorProto


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write the bytes of ``model.SerializeToString()`` to ``path``: fields in the order of their numbers."""
    with path.open("wb") as file:
        file.writelines(piece if isinstance(piece, bytes) else piece.raw_data for piece in _pieces(model))


def _pieces(message: Message) -> list[_Piece]:
    """The encoded fields of ``message``; for the field ``raw_data`` of a tensor the tensor."""
    pieces: list[_Piece] = []
    rest = type(message)()
    for field, value in message.ListFields():
        if field.name not in _WAY:
            _copy(field.name, value, rest)
            continue
        pieces.append(rest.SerializeToString())
        rest = type(message)()
        for one in value if field.name == "initializer" else [value]:
            inner = [message] if isinstance(message, onnx.TensorProto) else _pieces(one)
            size = sum(len(piece if isinstance(piece, bytes) else piece.raw_data) for piece in inner)
            pieces += [bytes([field.number << 3 | 2, *_digits(size)]), *inner]
    return [*pieces, rest.SerializeToString()]


def _copy(name: str, value: object, message: Message) -> None:
    field = getattr(message, name)
    if isinstance(value, Message):
        field.CopyFrom(value)
    elif hasattr(field, "extend"):
        field.extend(value)
    else:
        setattr(message, name, value)


def _digits(number: int) -> Iterator[int]:
    """Base 128, the lowest first, with the highest bit of a byte where more follow."""
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number
