"""Reads the profiles that ONNX Runtime writes. Imports no torch."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

_KERNEL = "_kernel_time"


class Args(msgspec.Struct):
    """``output_type_shape``: element type to shape, one of each output."""

    provider: str = ""
    op_name: str = ""
    output_type_shape: list[dict[str, list[int]]] = []


class Event(msgspec.Struct):
    """One entry of the profile; ``ts`` and ``dur`` in microseconds."""

    cat: str = ""
    name: str = ""
    ts: float = 0
    dur: float = 0
    args: Args = msgspec.field(default_factory=Args)

    @property
    def node(self) -> str:
        return self.name.removesuffix(_KERNEL)


def read_profile(path: Path) -> list[Event]:
    return msgspec.json.decode(path.read_bytes(), type=list[Event])


def kernels(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.cat == "Node" and event.args.provider and event.name.endswith(_KERNEL)]
