"""Which way to compute each kind of attention."""

from posexport.errors import PosexportError
from posexport.lowering.base import Lowering
from posexport.lowering.blockwise import Blockwise
from posexport.lowering.formula import Formula
from posexport.ops.attention import AttentionKind

#: In order of preference: the first that does not refuse is taken.
LOWERINGS: tuple[Lowering, ...] = (Blockwise(), Formula())


def choose(kind: AttentionKind, wanted: str = "auto") -> Lowering:
    """The lowering called ``wanted``, or the best that applies; PosexportError says why ``wanted`` does not."""
    check_name(wanted)
    if wanted == "auto":
        return next(lowering for lowering in LOWERINGS if lowering.refusal(kind) is None)
    found = next(lowering for lowering in LOWERINGS if lowering.name == wanted)
    reason = found.refusal(kind)
    if reason:
        raise PosexportError(f"lowering {wanted} does not apply to {kind.name}: {reason}; use --lowering auto")
    return found


def check_name(wanted: str) -> None:
    """PosexportError unless ``wanted`` is ``auto`` or the name of a lowering."""
    known = ["auto", *(lowering.name for lowering in LOWERINGS)]
    if wanted not in known:
        raise PosexportError(f"unknown lowering {wanted!r}; known: {', '.join(known)}")
