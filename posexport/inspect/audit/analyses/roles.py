"""What the inputs of a graph are, by their names and types: files of other tools say no more."""

import re
from collections.abc import Iterable

import onnx_ir as ir

_PAST = re.compile(r"past(?!_values$|_time|_observed)|cache|(^|[._])(k|v|conv|ssm|recurrent)_?state", re.IGNORECASE)
_PRESENT = re.compile(r"present|cache|updated|new_(key|value)", re.IGNORECASE)
_CROSS = re.compile(r"encoder|cross", re.IGNORECASE)


class Roles:
    """Inputs and outputs by what they are.

    Attributes:
        ids: token ids; `types`: token type ids.
        masks: padding masks.
        positions: position ids, and the first position of a call (``cache_position``).
        past: keys, values and states of earlier tokens; `cross`: those of an encoder's tokens.
        present: these after the call.
    """

    def __init__(self, graph: ir.Graph) -> None:
        fed = [value for value in graph.inputs if not value.is_initializer()]
        self.past = [v for v in fed if _PAST.search(_name(v)) and "length" not in _name(v) and _is_float(v)]
        self.cross = [v for v in self.past if _CROSS.search(_name(v))]
        rest = [v for v in fed if v not in self.past]
        self.positions = [v for v in rest if "position" in _name(v)]
        self.masks = [v for v in rest if "mask" in _name(v) and v not in self.positions]
        integers = [v for v in rest if v.dtype in (ir.DataType.INT64, ir.DataType.INT32)]
        self.ids = [v for v in integers if _is_ids(_name(v))]
        self.types = [v for v in integers if "type" in _name(v)]
        self.present = [v for v in graph.outputs if _PRESENT.search(_name(v))]

    @property
    def is_decoder(self) -> bool:
        """Whether calls continue earlier ones."""
        return bool(self.past)


def _name(value: ir.Value) -> str:
    return (value.name or "").lower()


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _is_ids(name: str) -> bool:
    return bool(re.search(r"(^|_)(input_?)?ids?$|tokens?$|input_ids", name)) and "type" not in name


def names(values: Iterable[ir.Value]) -> str:
    """For sentences."""
    return ", ".join(value.name or "?" for value in values)
