"""Damages a sound file within its structure: protobuf fields, JSON values, safetensors headers, bytes.

All changes follow from a `random.Random`, so that a number names an input.
"""

import copy
import json
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

#: numbers that sizes, offsets and indices are replaced by
NUMBERS = (0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
#: texts that names, paths and operators are replaced by
TEXTS = (
    *(
        "",
        ".",
        "..",
        "../secret",
        "/etc/hostname",
        "a/../../secret",
        "secret\0.data",
        "model.onnx",
        "x" * 300,
        "é\u202e",
    ),
    *("Loop", "If", "Scan", "Gather", "Reshape", "Softmax", "Cast", "com.microsoft", "inf", "-1", "1e999", "null"),
)
_FLOATS = (0.0, -0.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))
#: values of JSON that take the place of others
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    3,
    2**31,
    2**64,
    1e308,
    -0.5,
    "",
    "gelu",
    [],
    {},
    [[]],
    [None],
    {"": 0},
)
_MOST = 4


def message(proto: Message, rng: Random) -> None:
    """Change a few fields anywhere in a protobuf message."""
    for _ in range(rng.randint(1, _MOST)):
        places = list(_messages(proto))
        _change(rng.choice(places), places, rng)


def _messages(proto: Message, depth: int = 0) -> Iterator[Message]:
    """Yields a message and all messages in it."""
    yield proto
    if depth < 12:
        for field, value in proto.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for inner in value if _is_repeated(field) else [value]:
                    yield from _messages(inner, depth + 1)


def _change(proto: Message, places: list[Message], rng: Random) -> None:
    """Change one field of a message: its value, its number of elements, or that it is there."""
    fields = proto.DESCRIPTOR.fields
    present = [field for field, _ in proto.ListFields()]
    field = rng.choice(present) if present and rng.random() < 0.8 else rng.choice(fields)
    if _is_repeated(field):
        _change_repeated(proto, field, places, rng)
    elif rng.random() < 0.15:
        proto.ClearField(field.name)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        same = [other for other in places if field.message_type == other.DESCRIPTOR]
        if same:
            _copied(getattr(proto, field.name), rng.choice(same))
    else:
        setattr(proto, field.name, _scalar(field, getattr(proto, field.name), rng))


def _change_repeated(proto: Message, field: FieldDescriptor, places: list[Message], rng: Random) -> None:
    elements = getattr(proto, field.name)
    action = rng.randrange(5)
    if action == 0 and len(elements):
        del elements[rng.randrange(len(elements))]
    elif action == 1 and len(elements):
        elements.extend([elements[rng.randrange(len(elements))]] * rng.choice((1, 2, 30)))
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        same = [other for other in places if field.message_type == other.DESCRIPTOR]
        if same:
            added = type(same[0])()
            _copied(added, rng.choice(same))
            elements.append(added)
    elif len(elements) and action < 4:
        index = rng.randrange(len(elements))
        elements[index] = _scalar(field, elements[index], rng)
    else:
        elements.append(_scalar(field, None, rng))


def _copied(target: Message, source: Message) -> None:
    alone = type(source)()
    alone.CopyFrom(source)
    if alone.ByteSize() < 1_000_000:  # a graph in itself doubles each time
        target.CopyFrom(alone)


def _scalar(field: FieldDescriptor, value: Any, rng: Random) -> Any:
    """Another value of a field's type."""
    kind = field.cpp_type
    if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_INT32):
        limit = 2**63 if kind == FieldDescriptor.CPPTYPE_INT64 else 2**31
        number = rng.choice((*NUMBERS, (value or 0) + 1, (value or 0) - 1, rng.randint(-9, 30)))
        return max(-limit, min(limit - 1, number))
    if kind in (FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_UINT32):
        limit = 2**64 if kind == FieldDescriptor.CPPTYPE_UINT64 else 2**32
        return min(limit - 1, abs(rng.choice(NUMBERS)))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return damaged(value or b"", rng)
    return rng.choice((*TEXTS, (value or "")[:-1], (value or "") * 2))


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED)


def document(content: Any, rng: Random) -> Any:
    """Change a few values anywhere in a JSON document."""
    for _ in range(rng.randint(1, _MOST)):
        places = list(_containers(content))
        if not places:
            return copy.deepcopy(rng.choice(_VALUES))
        place = rng.choice(places)
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = rng.choice(keys)
        action = rng.randrange(6)
        if action == 0:
            del place[key]
        elif action == 1 and isinstance(place, dict):
            place[rng.choice((*TEXTS, *keys))] = place[key]
        elif action == 1:
            place.extend([place[key]] * rng.choice((1, 40)))
        elif action == 2:
            for _ in range(rng.choice((1, 60))):
                place[key] = [place[key]] if rng.random() < 0.5 else {"a": place[key]}
        elif action == 3 and isinstance(place[key], int | float) and not isinstance(place[key], bool):
            place[key] = rng.choice((*NUMBERS, -place[key], place[key] + 1, place[key] * 2, float(place[key])))
        elif action == 4:
            other = rng.choice(places)
            place[key] = json.loads(json.dumps(other)) if len(json.dumps(other)) < 100_000 else None
        else:
            # a copy: a list that stands in two places, or in the next document, could come to hold itself
            place[key] = copy.deepcopy(rng.choice((*_VALUES, *TEXTS)))
    return content


def _containers(content: Any) -> Iterator[Any]:
    """Objects and lists that have something in them."""
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list) and item:
            yield item
            waiting += item.values() if isinstance(item, dict) else item


def encoded(content: Any, rng: Random) -> bytes:
    """A document as bytes, now and then no sound JSON."""
    data = json.dumps(content).encode()
    return damaged(data, rng) if rng.random() < 0.1 else data


def damaged(data: bytes, rng: Random) -> bytes:
    """Some bytes changed, removed, repeated, or cut off."""
    array = bytearray(data)
    for _ in range(rng.randint(1, _MOST)):
        place = rng.randrange(len(array) + 1)
        action = rng.randrange(5)
        if action == 0:
            del array[place:]
        elif action == 1:
            del array[place : place + rng.choice((1, 4, 64))]
        elif action == 2:
            array[place:place] = array[place : place + rng.choice((1, 8, 200))]
        elif action == 3:
            array[place:place] = rng.randbytes(rng.choice((1, 4, 8)))
        elif place < len(array):
            array[place] = rng.choice((0, 1, 127, 128, 255, array[place] ^ (1 << rng.randrange(8))))
    return bytes(array)


def safetensors(data: bytes, rng: Random) -> bytes:
    """Another header, another length of it, or other bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    action = rng.randrange(4)
    if action == 0:
        return damaged(data, rng)
    if action == 1:
        return struct.pack("<Q", abs(rng.choice(NUMBERS)) % 2**64) + data[8:]
    header = encoded(document(json.loads(data[8 : 8 + length]), rng), rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


#: how a file of each ending is damaged, but for .onnx
BY_SUFFIX: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": lambda data, rng: encoded(document(json.loads(data), rng), rng),
    ".safetensors": safetensors,
}
