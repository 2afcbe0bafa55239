"""What a model takes, gives and promises, in words that every layer shares. Imports no torch.

Axis names are those of the ecosystem: ``batch_size``, ``sequence_length``; an integer is a fixed size.
"""

from typing import Literal

import msgspec

BATCH = "batch_size"
SEQUENCE = "sequence_length"
#: The keys and values of cross attention come from a sequence with a length of its own.
ENCODER_SEQUENCE = "encoder_sequence_length"

Axis = str | int
Role = Literal["tokens", "mask", "types", "values"]
Beyond = Literal["error", "clip", "interpolate"]


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input. ``size`` is the exclusive upper bound of ids; ``padding`` is the id that fills padded places.

    Roles: ``tokens`` (ids below ``size``), ``types`` (ids below ``size``), ``mask`` (1 keeps, 0 is padding; its
        last axis
    names the sequence it masks), ``values`` (real numbers).
    """

    name: str
    dtype: Literal["int64", "float32"]
    axes: list[Axis]
    role: Role
    size: int | None = None
    padding: int = 0


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One output. Where ``sequence_length`` is among the axes, entries of padded tokens are not compared."""

    name: str
    axes: list[Axis]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lengths a model is right for.

    ``trained``: the length its tables were made for (None: it has none). ``limit``: the longest input it takes (None:
    any length); one longer is refused by the graph's length guard. ``beyond``: what was chosen for inputs longer than
    ``trained``. ``boundaries``: lengths at which the encoding's formula changes (a clipping distance, a table's end).
    """

    minimum: int = 1
    trained: int | None = None
    limit: int | None = None
    beyond: Beyond = "error"
    boundaries: list[int] = []
    #: the axes that ``limit`` is about
    limited_axes: list[str] = msgspec.field(default_factory=lambda: [SEQUENCE])


class EncodingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which encoding a model uses, with the parameters its constructor was given."""

    name: str
    parameters: dict[str, int | float | str | bool | None]
