"""Biases of positions alone that are an encoding of posexport's, by values at several lengths.

ALiBi by the slopes of its number of heads (Press et al., arXiv:2108.12409), T5 by its buckets (Raffel et al.,
arXiv:1910.10683), where numbers in place of the table tell its rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.refusal import Refusal
from posexport.graph.builder import Builder
from posexport.graph.dataflow import sources
from posexport.graph.ops.biases import edges, slopes
from posexport.graph.partial import Subgraph
from posexport.graph.passes.recognise.content_bias import reads
from posexport.graph.queries import is_weight, sizes

#: tokens that a bias is compared for, and those that buckets are read from: of many heads, and of few
_LENGTHS, _FAR, _NEARER, _FEW = (7, 150), 1025, 515, 16
#: why a bias is left as it is
NO_ENCODING = Refusal("what its mask adds by positions alone is none of our encodings' bias")
#: roundings of float32: of a slope, and of its product with a distance
_ROUNDINGS = 4 * float(np.finfo(np.float32).eps)

Variant = Literal["symmetric", "causal"]


def of_positions(model: ir.Model, value: ir.Value) -> bool:
    """Whether ``value`` is computed from sizes and weights alone."""
    return not reads(value, *model.graph.inputs)


class Known(ABC):
    """A bias that is one of our encodings', by its ``name``."""

    @property
    @abstractmethod
    def name(self) -> str:
        """For the manifest and `posexport explain`."""

    def build(self, before: ir.Node, at: ir.Value) -> tuple[ir.Value, ir.Value]:
        """``by_distance`` [H, W] and ``lowest`` [1] of tokens at 0, 1, 2 ... (`ops.distance_scores`)."""
        g = Builder.at(before)
        count = g.Shape(at)
        lowest = g.Sub([1], count)
        return self.by_distance(g, g.Range(g.Squeeze(lowest), g.Squeeze(count), g.Squeeze([1]))), lowest

    @abstractmethod
    def by_distance(self, g: Builder, distance: ir.Value) -> ir.Value:
        """[H, W] of int64 distances [W], query minus key."""


@dataclass(frozen=True)
class Alibi(Known):
    """The slopes for a number of heads."""

    heads: int
    variant: Variant

    @property
    def name(self) -> str:
        slope = slopes(self.heads)
        return f"ALiBi (slopes {max(slope):.3g} to {min(slope):.3g} of {self.heads} heads, {self.variant})"

    def by_distance(self, g: Builder, distance: ir.Value) -> ir.Value:
        slopes_H1 = -np.asarray(slopes(self.heads), np.float32)[:, None]
        counted = distance if self.variant == "causal" else g.Abs(distance)
        return g.Mul(slopes_H1, g.Cast(counted, to=ir.DataType.FLOAT))


@dataclass(frozen=True)
class Buckets(Known):
    """A ``table`` [buckets, heads] read by T5's buckets."""

    table: ir.Value
    heads: int
    buckets: int
    max_distance: int
    bidirectional: bool

    @property
    def name(self) -> str:
        side = "bidirectional" if self.bidirectional else "one-sided"
        return f"T5 buckets ({self.buckets}, {self.max_distance}, {side})"

    @property
    def edges(self) -> list[int]:
        side = self.buckets // 2 if self.bidirectional else self.buckets
        return edges(side, self.max_distance)

    def by_distance(self, g: Builder, distance: ir.Value) -> ir.Value:
        length = g.Abs(distance) if self.bidirectional else g.Max(distance, [0])
        reached = g.GreaterOrEqual(g.Unsqueeze(length, [1]), self.edges)
        rows = g.ReduceSum(g.Cast(reached, to=ir.DataType.INT64), [1], keepdims=0)
        if self.bidirectional:
            later = g.Cast(g.Less(distance, [0]), to=ir.DataType.INT64)
            rows = g.Add(rows, g.Mul(later, [self.buckets // 2]))
        return g.Transpose(g.Gather(self.table, rows, axis=0), perm=[1, 0])


def find(model: ir.Model, bias: ir.Value, heads: int) -> Known | Refusal:
    """The encoding that computes this bias [.., H, T, T], or the reason why none matches."""
    tokens = (sizes(bias) or ())[-1]
    if not isinstance(tokens, str) or (sizes(bias) or ())[-2] != tokens or bias.dtype != ir.DataType.FLOAT:
        return NO_ENCODING
    tables = [
        source
        for source in sources(bias, stops=model.graph.inputs)
        if is_weight(source, 2) and source.dtype == bias.dtype
    ]
    fitting = [table for table in tables if (sizes(table) or ())[1] == heads]
    if len(fitting) == 1:
        return _buckets(model, bias, tokens, fitting[0]) or NO_ENCODING
    return _alibi(model, bias, tokens, heads) or NO_ENCODING


def _computed(
    subgraph: Subgraph, arrays: dict[ir.Value, NDArray[Any]], tokens: str, length: int
) -> NDArray[Any] | None:
    """The bias [H, T, T]; None if it cannot be computed for this length, for example of frames after convolutions."""
    answer = subgraph.run(arrays, {tokens: length})
    if answer is None or answer[0].shape[-2:] != (length, length):
        return None
    return answer[0].reshape(-1, length, length)


def _alibi(model: ir.Model, bias: ir.Value, tokens: str, heads: int) -> Alibi | None:
    subgraph, variants = Subgraph(model, [bias], []), list[Variant](get_args(Variant))
    slope_H11 = np.asarray(slopes(heads))[:, None, None]
    for length in _LENGTHS:
        computed = None if not subgraph.is_closed else _computed(subgraph, {}, tokens, length)
        if computed is None:
            return None
        distance = np.subtract.outer(np.arange(length), np.arange(length))
        for variant in list(variants):
            expected = -slope_H11 * (distance if variant == "causal" else np.abs(distance))
            if not (np.abs(computed - expected) <= _ROUNDINGS * np.abs(expected)).all():
                variants.remove(variant)
    return Alibi(heads, variants[0]) if variants else None


def _buckets(model: ir.Model, bias: ir.Value, tokens: str, table: ir.Value) -> Buckets | None:
    count, heads = (int(n) for n in sizes(table) or ())
    subgraph = Subgraph(model, [bias], [table])
    if not subgraph.is_closed:
        return None
    # a number for every row and head that float32 represents exactly
    numbered_table = (np.arange(count)[:, None] + count * np.arange(heads)).astype(np.float32)
    far = _FAR if heads <= _FEW else _NEARER
    whole = _computed(subgraph, {table: numbered_table}, tokens, far)
    if whole is None:
        return None
    rows_W = np.concatenate([whole[0, 0, :0:-1], whole[0, :, 0]]).astype(np.int64)
    known = _settings(rows_W, count, far)
    if known is None:
        return None
    shorter = [_computed(subgraph, {table: numbered_table}, tokens, length) for length in _LENGTHS]
    for length, computed in zip((*_LENGTHS, far), (*shorter, whole), strict=True):
        distance = np.subtract.outer(np.arange(length), np.arange(length))
        expected = rows_W[distance + far - 1] + count * np.arange(heads)[:, None, None]
        if computed is None or not (computed == expected).all():
            return None
    return Buckets(table, heads, count, *known)


def _settings(rows_W: NDArray[np.int64], count: int, far: int) -> tuple[int, bool] | None:
    """Largest distance and whether both sides have buckets, from the rows of distances 1 - far to far - 1."""
    behind, ahead = rows_W[far - 1 :], rows_W[far - 1 :: -1]
    for bidirectional in (True, False):
        side = count // 2 if bidirectional else count
        if side < 2 or (bidirectional and count % 2):
            continue
        wanted_ahead = np.where(np.arange(far) > 0, behind + side, behind[0]) if bidirectional else behind[0]
        last = np.flatnonzero(behind == side - 1)
        if not (ahead == wanted_ahead).all() or not len(last):
            continue
        for distance in _largest(int(last[0]), side):
            lowest = np.asarray(edges(side, distance))
            if (behind == (np.arange(far)[:, None] >= lowest).sum(1)).all():
                return distance, bidirectional
    return None


def _largest(edge: int, side: int) -> Sequence[int]:
    """Distances by which the last of ``side`` buckets may begin at ``edge``, rounder ones first."""
    near, far = side // 2, side - side // 2
    if far < 2:
        return [max(edge, near + 1)]
    low, high = (near * (n / near) ** (far / (far - 1)) if n > near else near + 1 for n in (edge - 1, edge))
    return sorted(range(max(int(low), near + 1), int(high) + 2), key=lambda n: (-(n & -n), n))
