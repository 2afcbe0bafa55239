"""Which way to compute each kind of node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posexport.errors import PosexportError
from posexport.lowering.blockwise import Blockwise
from posexport.lowering.chunked import Chunked
from posexport.lowering.formula import Formula
from posexport.lowering.group_query import GroupQuery
from posexport.lowering.lowering import Kind, Lowering
from posexport.lowering.multi_head import MultiHead
from posexport.lowering.onnx_attention import OnnxAttention
from posexport.lowering.rotation import LOWERINGS, SHARED_LOWERINGS
from posexport.lowering.static import Static
from posexport.lowering.waves import LOWERINGS as WAVES_LOWERINGS
from posexport.ops.attention import kinds as attention_kinds
from posexport.ops.rotation import kinds as rotation_kinds
from posexport.ops.rotation import shared_kinds
from posexport.ops.waves import kinds as waves_kinds
from posexport.suggest import did_you_mean
from posexport.targets.target import Target


@dataclass(frozen=True)
class Family:
    """Kinds of nodes with the same ways of computing them.

    Attributes:
        name: what providers name it by, whose preferred lowerings are others.
        kinds: by ``op_type``.
        lowerings: in order of preference: the first that does not refuse is taken.
    """

    name: str
    kinds: Callable[[], Mapping[str, Any]]
    lowerings: Sequence[Lowering[Any]]

    def ordered(self, target: Target) -> list[Lowering[Any]]:
        """The lowerings in the target's order."""
        order = list(target.provider.preferred.get(self.name, ()) if target.provider else ())
        return sorted(self.lowerings, key=lambda each: order.index(each.name) if each.name in order else len(order))


@dataclass(frozen=True)
class Choice:
    """A way of computing a kind, and of every other one why it was not taken."""

    lowering: Lowering[Any]
    refused: dict[str, str]


#: the one that writes to a cache of fixed size itself
GROUP_QUERY = GroupQuery()
ATTENTION = Family(
    "attention",
    attention_kinds,
    (GROUP_QUERY, Static(), Blockwise(), OnnxAttention(), MultiHead(), Formula(), Chunked()),
)
#: the first that has a kind decides: rotations that all rows share stand before rotations of any kind
FAMILIES: list[Family] = [
    ATTENTION,
    Family("shared rotation", shared_kinds, SHARED_LOWERINGS),
    Family("rotation", rotation_kinds, LOWERINGS),
    Family("waves", waves_kinds, WAVES_LOWERINGS),
]


def family_of(name: str) -> tuple[Family, Kind] | None:
    """The family that a node type belongs to, and its kind; None for a type that has one meaning only."""
    for family in FAMILIES:
        kind = family.kinds().get(name)
        if kind is not None:
            return family, kind
    return None


def choose(family: Family, kind: Any, target: Target, wanted: str = "auto") -> Choice:
    """The lowering called ``wanted``, or the best that applies; PosexportError says why ``wanted`` does not."""
    refused: dict[str, str] = {}
    taken: Lowering[Any] | None = None
    for lowering in family.ordered(target):
        reason = lowering.refusal(kind, target)
        if reason is None and wanted in ("auto", lowering.name) and taken is None:
            taken = lowering
            continue
        if reason is not None and lowering.name == wanted:
            raise PosexportError(f"lowering {wanted} does not apply to {kind.name}: {reason}; use --lowering auto")
        other = f"--lowering {wanted} was asked for" if wanted != "auto" else lowering.beaten
        refused[lowering.name] = reason or other
    if taken is None:  # the lowering belongs to another family
        return choose(family, kind, target)
    return Choice(taken, refused)


def check_name(wanted: str) -> None:
    """PosexportError unless ``wanted`` is ``auto`` or the name of a lowering."""
    known = sorted({lowering.name for family in FAMILIES for lowering in family.lowerings})
    if wanted not in ("auto", *known):
        hint = did_you_mean(wanted, known, f"known: {', '.join(['auto', *known])}")
        raise PosexportError(f"unknown lowering {wanted!r}; {hint}")
