"""Which way to compute each kind of attention."""

from posexport.errors import PosexportError
from posexport.lowering.base import Lowering
from posexport.lowering.blockwise import Blockwise
from posexport.lowering.formula import Formula
from posexport.lowering.static import Static
from posexport.ops.attention import AttentionKind

#: In order of preference: the first that does not refuse is taken.
LOWERINGS: tuple[Lowering, ...] = (Blockwise(), Formula())
#: the one that knows which places of a cache of fixed size are free
STATIC = Static()


def choose(kind: AttentionKind, wanted: str = "auto", *, flat: bool = False) -> Lowering:
    """The lowering called ``wanted``, or the best that applies; PosexportError says why ``wanted`` does not.

    ``flat``: the graph is for runtimes that know neither functions nor Scan, such as OpenVINO.
    """
    check_name(wanted)
    if kind.static:
        return STATIC
    if wanted == "auto":
        fitting = [lowering for lowering in LOWERINGS if lowering.refusal(kind) is None]
        return next(lowering for lowering in fitting if not (flat and lowering.scans))
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
