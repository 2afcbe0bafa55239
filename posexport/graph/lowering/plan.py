"""Which way to compute each node of domain ``posexport``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from posexport.base.options.check import did_you_mean
from posexport.base.registry import Registry
from posexport.base.targets.target import Target
from posexport.errors import PosexportError
from posexport.graph.lowering.filled_slots import FilledSlots
from posexport.graph.lowering.formula import Formula
from posexport.graph.lowering.group_query import GroupQuery
from posexport.graph.lowering.kept_keys import KeptKeys
from posexport.graph.lowering.lowering import Lowering
from posexport.graph.lowering.multi_head import MultiHead
from posexport.graph.lowering.onnx_attention import OnnxAttention
from posexport.graph.lowering.rotation import LOWERINGS, SHARED_LOWERINGS
from posexport.graph.lowering.states import CONVOLUTIONS, RECURRENCES
from posexport.graph.lowering.static import Static
from posexport.graph.lowering.tiled import Tiled
from posexport.graph.lowering.waves import LOWERINGS as WAVES_LOWERINGS
from posexport.graph.ops.attention import AttentionSpec
from posexport.graph.ops.rotation import RotationSpec
from posexport.graph.ops.spec import NodeSpec
from posexport.graph.ops.states import ConvolutionSpec, RecurrenceSpec
from posexport.graph.ops.waves import ProjectionSpec

#: the lowerings that packages add, by entry points of the group ``posexport.lowerings``
ADDED: Registry[Lowering[Any]] = Registry("lowerings", Lowering)


@dataclass(frozen=True)
class Family:
    """Nodes with the same ways of computing them.

    Attributes:
        spec: the record of a node; None for nodes of other families.
        name: the key of a provider's ``preferred`` lowerings.
        lowerings: in order of preference; the first that does not refuse is chosen.
    """

    name: str
    spec: Callable[[ir.Node], NodeSpec | None]
    lowerings: Sequence[Lowering[Any]]

    def ordered(self, target: Target, requested: str = "auto") -> list[Lowering[Any]]:
        """Returns the lowerings in the target's order.

        A lowering of another package is included if it is ``requested`` or the target prefers it.
        """
        order = list(target.provider.preferred.get(self.name, ()) if target.provider else ())
        known = {lowering.name for lowering in self.lowerings}
        added = [ADDED.get(name) for name in dict.fromkeys((*order, requested)) if name not in (*known, "auto")]
        lowerings = [
            *self.lowerings,
            *(lowering for lowering in added if lowering is not None and lowering.family == self.name),
        ]
        return sorted(
            lowerings, key=lambda lowering: order.index(lowering.name) if lowering.name in order else len(order)
        )


@dataclass(frozen=True)
class Choice:
    """The lowering of a node, and why each of the others was not chosen."""

    lowering: Lowering[Any]
    rejected: dict[str, str]


#: the one that writes to a static KV cache itself
GROUP_QUERY = GroupQuery()
#: the one that copies what it reads of that cache, without a branch
FILLED_SLOTS = FilledSlots()
#: the one that reads kept keys first
KEPT_KEYS = KeptKeys()
ATTENTION = Family(
    "attention",
    AttentionSpec.of,
    (GROUP_QUERY, FILLED_SLOTS, KEPT_KEYS, Static(), Tiled(), OnnxAttention(), MultiHead(), Formula()),
)


def _shared_rotation(node: ir.Node) -> RotationSpec | None:
    spec = RotationSpec.of(node)
    return spec if spec is not None and spec.shared else None


#: the first that knows a node decides: rotations that all rows share come before any rotations
FAMILIES: list[Family] = [
    ATTENTION,
    Family("shared rotation", _shared_rotation, SHARED_LOWERINGS),
    Family("rotation", RotationSpec.of, LOWERINGS),
    Family("waves", ProjectionSpec.of, WAVES_LOWERINGS),
    Family("recurrence", RecurrenceSpec.of, RECURRENCES),
    Family("convolution", ConvolutionSpec.of, CONVOLUTIONS),
]


def family_of(node: ir.Node) -> tuple[Family, NodeSpec] | None:
    """The family that a node of a traced graph belongs to, and its record; None where it has one meaning only."""
    for family in FAMILIES:
        spec = family.spec(node)
        if spec is not None:
            return family, spec
    return None


def choose(family: Family, spec: Any, target: Target, requested: str = "auto") -> Choice:
    """The lowering called ``requested``, or the best that applies; PosexportError says why ``requested`` does not."""
    refused: dict[str, str] = {}
    taken: Lowering[Any] | None = None
    for lowering in family.ordered(target, requested):
        reason = lowering.refusal(spec, target)
        if reason is None and requested in ("auto", lowering.name) and taken is None:
            taken = lowering
            continue
        if reason is not None and lowering.name == requested:
            raise PosexportError(f"lowering {requested} does not apply to {spec.name}: {reason}; use --lowering auto")
        other = f"--lowering {requested} was asked for" if requested != "auto" else lowering.why_not_preferred
        refused[lowering.name] = reason or other
    if taken is None:  # the lowering belongs to another family
        return choose(family, spec, target)
    return Choice(taken, refused)


def check_name(requested: str) -> None:
    """PosexportError unless ``requested`` is ``auto`` or the name of a lowering."""
    known = sorted({lowering.name for family in FAMILIES for lowering in family.lowerings} | set(ADDED.names))
    if requested not in ("auto", *known):
        hint = did_you_mean(requested, known, f"known: {', '.join(['auto', *known])}")
        raise PosexportError(f"unknown lowering {requested!r}; {hint}")
