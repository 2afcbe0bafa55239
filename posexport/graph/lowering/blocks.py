"""The size of a block, and which targets have calls of more queries than one holds."""

from posexport.base.targets.target import Target

#: queries of a block; more than one of causal attention are better cut: half of their keys are never looked at, and a
#: softmax over dropped ones is slow (what they come to is too small for a normal number)
BLOCK = 128


def may_tile(target: Target) -> bool:
    """Calls may have more queries than a block holds: only then a graph has branches that tile them."""
    return target.longest is None or target.longest > BLOCK


def may_tile_scores(target: Target, limit: int) -> bool:
    """Calls may have more than ``limit`` elements of scores."""
    return target.most_scores is None or target.most_scores > limit


def always_tiles_scores(target: Target, limit: int) -> bool:
    """All calls have more than ``limit`` elements of scores."""
    return target.least_scores > limit


def always_tiles(target: Target) -> bool:
    """All calls have more queries than a block holds."""
    return target.shortest > BLOCK
