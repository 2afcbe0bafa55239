"""How near values come to the largest number of float16, as records of the report. Imports no torch."""

from collections.abc import Iterator, Sequence

import msgspec

#: of float16
LARGEST = 65504.0


class LayerRange(msgspec.Struct, frozen=True, kw_only=True):
    """The largest magnitude that a layer computed before it was rounded, and the node that did.

    ``layer``: a module's path or what nodes' names say; empty where they say nothing.
    """

    layer: str
    largest: float
    node: str
    op_type: str


class Overflow(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose result is beyond float16, though what it reads is not. ``value``: None where it is no number."""

    layer: str
    node: str
    op_type: str
    value: float | None

    def describe(self) -> str:
        """The overflow in a sentence."""
        value = "a result that is infinite or no number" if self.value is None else f"{self.value:.3g}"
        return f"{where(self)} gives {value}, beyond float16's largest number {LARGEST:.0f}; use fp32 or bf16"


def where(found: "LayerRange | Overflow") -> str:
    """The node, and its layer where that is known."""
    return f"{found.op_type} {found.node}" + (f" (in {found.layer})" if found.layer else "")


def nearest(layers: Sequence[LayerRange]) -> LayerRange | None:
    """The layer with the largest magnitude."""
    return max(layers, key=lambda each: each.largest, default=None)


def lines(layers: Sequence[LayerRange], overflows: Sequence[Overflow]) -> Iterator[str]:
    """Remarks of a report."""
    for overflow in overflows[:_NAMED]:
        yield f"FAIL: overflow: {overflow.describe()}"
    if len(overflows) > _NAMED:
        yield f"FAIL: and {len(overflows) - _NAMED} more nodes overflow"
    if (most := nearest(layers)) is not None and not overflows:
        share = most.largest / LARGEST
        yield f"ok: values come to {most.largest:.3g}, {share:.2g} of float16's range, at {where(most)}"


#: overflows that remarks name
_NAMED = 3
