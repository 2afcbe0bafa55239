"""The lengths at which a graph takes another branch: a mistake on one side of them shows on that side only."""

from posexport.lowering.blocks import BLOCK
from posexport.spec import LengthContract, samples


def switches(envelope: LengthContract) -> list[int]:
    """Longest lengths of a branch, ascending: up to and including each the graph computes in one way.

    Lengths at which the encoding's formula changes, and the length from which attention is tiled over queries; in units
    of ``sequence_length`` (samples where convolutions make tokens of them).
    """
    return sorted({*envelope.boundaries, samples(BLOCK + 1, envelope.convolutions) - 1})
