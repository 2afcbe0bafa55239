"""Keys in whole chunks, for operators with a relative shift; and, in causal attention, those a tile of queries sees."""

from collections.abc import Callable
from dataclasses import replace

from posexport.base.targets.target import Target
from posexport.graph.lowering.attention import Attention
from posexport.graph.lowering.blocks import BLOCK
from posexport.graph.ops.skew import CHUNK


def keys_are_padded(target: Target) -> bool | None:
    """Whether keys of more than one tile are padded to whole chunks, which the mask drops; None: some are."""
    if target.longest is not None and target.longest == target.shortest:
        return bool(target.longest % CHUNK)
    return True if target.longest is not None and target.longest < BLOCK + CHUNK else None


def pad_keys(attention: Attention, *, padded: bool | None) -> Attention:
    """Attention over keys in whole chunks, with a mask that drops the padding.

    Causal attention needs no mask for that: padded keys are after every query that counts. Nor do keys that are in
    whole chunks already, which ``padded`` says (`keys_are_padded`).
    """
    g, spec, x = attention.g, attention.spec, attention.x
    length = g.Shape(x["kpos"])
    whole = g.Mul(g.Div(g.Add(length, [CHUNK - 1]), [CHUNK]), [CHUNK])
    missing = g.Sub(whole, length)
    pads = g.shape([0, 0, 0, 0, 0, 0], missing, [0])
    first = g.slice(x["kpos"], [0], [1], 0)
    kpos = g.range(first, g.Add(first, whole), name="kpos_padded")
    over = attention.over(k=g.Pad(x["k"], pads, name="k_padded"), v=g.Pad(x["v"], pads, name="v_padded"), kpos=kpos)
    if spec.mask == "none" and (spec.causal or padded is False):
        return over
    nothing_dropped = g.ConstantOfShape(g.shape([1, 1, 1], length))
    mask = x["mask"] if spec.mask == "keys" else g.CastLike(nothing_dropped, attention.like)
    pads = g.shape([0, 0, 0, 0, 0, 0, 0], missing)
    mask = g.Pad(mask, pads, attention.lowest(), name="mask_padded")
    return replace(over.over(mask=mask), spec=replace(spec, mask="keys"))


def causal_reach(attention: Attention) -> Callable[[Attention], Attention]:
    """From attention of a tile to that over the keys that some query of the tile sees, in whole chunks.

    What does not depend on the tile is written where this is called.
    """
    g, x = attention.g, attention.x
    before_first = g.Sub(g.slice(x["kpos"], [0], [1], 0), [1], name="before_first_key")
    total = g.Shape(x["kpos"])
    least = g.Min([CHUNK], total)
    axes = {"k": 2, "v": 2, "kpos": 0} | ({"mask": 3} if attention.spec.mask != "none" else {})

    def over_seen_keys(tile: Attention) -> Attention:
        reach = g.Sub(g.ReduceMax(tile.x["qpos"], keepdims=1), before_first)
        whole = g.Mul(g.Div(g.Add(reach, [CHUNK - 1]), [CHUNK]), [CHUNK])
        seen = g.Max(g.Min(whole, total), least, name="seen_keys")
        slices = {name: g.slice(x[name], [0], seen, axis, name=f"{name}_seen") for name, axis in axes.items()}
        return tile.over(**slices)

    return over_seen_keys
