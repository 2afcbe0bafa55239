"""What passes ask about a graph's inputs, from the file alone: roles, names of axes, and inputs of several sizes."""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from posexport.base.spec import (
    BATCH,
    CAPACITY,
    ENCODER_SEQUENCE,
    HEIGHT,
    PAST,
    SAMPLES,
    SEQUENCE,
    TOTAL,
    WIDTH,
    InputSpec,
    Role,
)
from posexport.inspect.audit.calls.calls import Calls
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.calls.ports import Kind, Port

#: tokens of the longest input that masks are looked at for
LONG = 1024
#: tokens that a row of any call has at most
MOST = 1200
_AXES = {
    "batch": BATCH,
    "tokens": SEQUENCE,
    "past": PAST,
    "total": TOTAL,
    "capacity": CAPACITY,
    "encoder": ENCODER_SEQUENCE,
    "height": HEIGHT,
    "width": WIDTH,
    "samples": SAMPLES,
}
_ROLES: Mapping[Kind, Role] = {
    "ids": "tokens",
    "mask": "mask",
    "ones": "mask",
    "positions": "positions",
    "past": "cache",
    "values": "values",
    "corners": "boxes",
    "branch": "flags",
    "zero": "flags",
}


def input_specs(ports: Sequence[Port]) -> list[InputSpec]:
    """The graph's inputs as records of posexport's."""
    return [
        InputSpec(
            name=port.name,
            dtype=port.dtype,
            axes=[_AXES.get(str(axis), str(axis)) if isinstance(axis, str) else axis for axis in port.axes],
            role=_ROLES[port.kind],
            size=port.rows or None,
        )
        for port in ports
    ]


def longest(calls: Calls) -> int | None:
    """The most tokens of a row that the file computes; None if it computes `LONG`, or has no axis of tokens."""

    def computes(length: int) -> bool:
        return bool(calls(Call(((1, length),))))

    if not calls.inputs.has("tokens") or computes(LONG):
        return None
    return bisect.bisect_left(range(LONG), True, lo=calls.working[-1] + 1, key=lambda length: not computes(length)) - 1


def samples(calls: Calls, most: int) -> list[Mapping[str, NDArray[Any]]]:
    """Inputs of several sizes, a short row and a long one padded on either side; the largest last."""
    short, middle = min(7, most), min(33, most)
    several = [
        Call(((1, short), (2, short), (3, short - short // 3))),
        Call(((1, middle), (2, middle - middle // 3)), side="left"),
        Call(((1, most),)),
    ]
    return [calls.inputs.feeds(call) for call in several if calls(call)]
