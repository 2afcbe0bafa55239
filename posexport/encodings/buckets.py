"""T5's buckets of distances: one each for the near ones, ever wider ones for the far.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (arXiv:1910.10683),
section 2.1, as released. The released code truncates float32 logarithms, so that an edge may flip by rounding; here
the edges are integers, computed exactly when the module is built, and a bucket is a count of comparisons.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from posexport.errors import PosexportError
from posexport.graph.ops.biases import edges


def two_sided_edges(encoding: str, buckets: int, max_distance: int) -> list[int]:
    """`edges` of one side, where keys before and after the query have half of the ``buckets`` each.

    Raises:
        PosexportError: numbers that do not fit, with the name of the encoding.
    """
    if buckets % 2 or max_distance <= buckets // 4:
        raise PosexportError(
            f"{encoding}: buckets must be even, and max_distance above a quarter of them, "
            f"got buckets={buckets}, max_distance={max_distance}"
        )
    return edges(buckets // 2, max_distance)


def boundaries(edges: Sequence[int], max_distance: int) -> set[int]:
    """Longest inputs without a wide bucket, without the second of these, without the last, and ``max_distance``."""
    near = (len(edges) + 1) // 2
    return {*edges[near - 1 : near + 1], edges[-1], max_distance}


def bucket(distance: Tensor, edges: Sequence[int], *, bidirectional: bool) -> Tensor:
    """The bucket of each int64 distance (query minus key).

    ``bidirectional``: keys after the query have separate buckets, after the others; otherwise they share the one
    of distance 0.
    """
    edges_E = torch.tensor(edges, dtype=torch.int64, device=distance.device)
    length = distance.abs() if bidirectional else distance.clamp(min=0)
    index = (length[..., None] >= edges_E).sum(-1)
    return index + (distance < 0).to(torch.int64) * (len(edges) + 1) if bidirectional else index
