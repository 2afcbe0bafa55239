"""The positions of a graph as it computes them: biases, rotations and vectors, where they meet the content.

A value that no token influences and that an operator combines with content is a bias, a table of cosines or sines, a
vector for every position, or a mask. Each is computed by ONNX Runtime for one row without padding, apart from the rest
of the graph: no PyTorch and no catalogue of encodings, so the picture shows the values of the file. Needs onnx_ir.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.spec import DOMAIN, HEIGHT, WIDTH, InputSpec
from posexport.graph.dataflow import content_values
from posexport.graph.partial import Subgraph
from posexport.graph.queries import SHAPES
from posexport.inspect.explain import feeds
from posexport.run.bundle.manifest import MODEL, Manifest
from posexport.run.bundle.read import locate

Array = NDArray[np.float64]
#: tokens of the row: the size of no model, so that an axis of this size is one of positions
LENGTH = 61
#: lower scores are masks
_MASKED = -1e4
#: elements of a constant that may be positions
_LARGEST = 1 << 22
#: inputs of operators that are positions, by what they hold
_SLOTS: Mapping[tuple[str, str], Mapping[int, str]] = {
    ("", "RotaryEmbedding"): {1: "cos", 2: "sin"},
    ("com.microsoft", "RotaryEmbedding"): {2: "cos", 3: "sin"},
    ("com.microsoft", "GroupQueryAttention"): {7: "cos", 8: "sin", 10: "bias"},
    ("com.microsoft", "MultiHeadAttention"): {5: "bias"},
    ("", "Attention"): {3: "bias"},
    ("", "Add"): {0: "vectors", 1: "vectors"},
}
#: inputs of posexport's functions, by the ends of their names
_NAMED = {"by_distance_of_key": "table", "by_distance": "by_distance", "table": "table", "cos": "cos", "sin": "sin"}


@dataclass(frozen=True)
class Positions:
    """One value with positions.

    Attributes:
        kind: ``distance``: scores [heads, distances]; ``pairs``: scores [heads, queries, keys]; ``grid``: scores
            [heads, rows, columns] by offset in an image; ``rotation``: angles [positions, pairs of channels];
            ``vectors``: [positions, channels], added to tokens; ``table``: lengths of learned vectors [heads, rows].
        values: the numbers; masked scores are -inf.
        first: the first distance, or 0.
        uses: how many nodes of the graph take it.
    """

    kind: str
    values: Array
    first: int = 0
    uses: int = 1


#: where a value enters the content: what it holds, and the node
_Entry = tuple[str, ir.Node]


def positions(directory: Path, manifest: Manifest, length: int = LENGTH) -> dict[str, list[Positions]]:
    """The positions of every graph of a bundle, by its file; of one with positions of no known kind, none.

    ``length``: tokens of the row, fewer where the bundle takes no more.
    """
    graphs = {graph.file: graph.inputs for graph in manifest.parts} or {MODEL: manifest.inputs}
    return {file: _of_graph(ir.load(locate(directory, file)), ins, manifest, length) for file, ins in graphs.items()}


def _of_graph(model: ir.Model, inputs: Sequence[InputSpec], manifest: Manifest, length: int) -> list[Positions]:
    entries = _entries(model, inputs)
    # distances and codes are numbered by other inputs of the same node
    beside = {v: None for value, (_, node) in entries.items() for v in _numbering(model, node, value).values()}
    arrays = _computed(model, list(dict.fromkeys([*entries, *beside])), inputs, manifest, length)
    uses = _uses(model, entries)
    drawn: list[Positions] = []
    rotations: dict[str, list[tuple[Array, int]]] = {"cos": [], "sin": []}
    for value, (what, node) in entries.items():
        array = arrays.get(value)
        if array is None or array.dtype.kind != "f":
            continue
        wide = array.astype(np.float64)
        if what in rotations:
            rotations[what].append((wide, uses[value]))
        else:
            numbering = {name: arrays[v] for name, v in _numbering(model, node, value).items() if v in arrays}
            drawn += [replace(one, uses=uses[value]) for one in _kind(what, wide, numbering)]
    for (cos, count), (sin, _) in zip(rotations["cos"], rotations["sin"], strict=False):
        if cos.shape == sin.shape and cos.ndim > 1 and cos.shape[-2] > 1:
            angles = np.arctan2(sin, cos).reshape(-1, *cos.shape[-2:])[0][:length]
            drawn.append(Positions("rotation", _halved(angles), uses=count))
    if any(one.kind in ("distance", "grid") for one in drawn):
        # biases of all pairs are the same scores again, masks at most
        drawn = [one for one in drawn if one.kind != "pairs"]
    return _merged(drawn)


def _entries(model: ir.Model, inputs: Sequence[InputSpec]) -> dict[ir.Value, _Entry]:
    """Values without content at known inputs of nodes with content: what they hold, and one of these nodes."""
    content = content_values(model, {spec.name: spec.role for spec in inputs})
    entries: dict[ir.Value, _Entry] = {}
    for node in model.graph.all_nodes():
        if node.op_type in SHAPES or content.isdisjoint(value for value in node.inputs if value is not None):
            continue
        slots = _slots(model, node)
        for index, value in enumerate(node.inputs):
            if value is None or index not in slots or value in content or value in entries:
                continue
            outside = value.producer() is None or value.producer() in model.graph
            constant = value.const_value is not None
            if not outside or value.is_graph_input() or (constant and value.const_value.size > _LARGEST):  # type: ignore[union-attr]
                continue
            if slots[index] == "vectors" and constant:
                continue  # the bias of a linear projection
            entries[value] = slots[index], node
    return entries


def _slots(model: ir.Model, node: ir.Node) -> dict[int, str]:
    if node.domain != DOMAIN:
        return dict(_SLOTS.get((node.domain, node.op_type), {}))
    function = model.functions.get(node.op_identifier())
    names = [value.name or "" for value in function.inputs] if function else []
    return {
        index: what
        for index, name in enumerate(names)
        for what in [next((kind for end, kind in _NAMED.items() if name.endswith(end)), "")]
        if what
    }


def _numbering(model: ir.Model, node: ir.Node, value: ir.Value) -> dict[str, ir.Value]:
    """The inputs of ``node`` that number the entries of ``value``: its lowest distance, codes of queries."""
    function = model.functions.get(node.op_identifier())
    if function is None or node.domain != DOMAIN:
        return {}
    named = {formal.name or "": actual for formal, actual in zip(function.inputs, node.inputs, strict=False)}
    kinds = {"lowest": "lowest", "query_code": "codes", "normaliser": "normaliser"}
    numbered = {kind: v for name, v in named.items() for end, kind in kinds.items() if name.endswith(end) and v}
    return {name: v for name, v in numbered.items() if v is not value and not v.is_graph_input()}


def _uses(model: ir.Model, entries: Iterable[ir.Value]) -> dict[ir.Value, int]:
    counts = dict.fromkeys(entries, 0)
    for node in model.graph.all_nodes():
        for value in {value for value in node.inputs if value is not None} & counts.keys():
            counts[value] += 1
    return counts


def _computed(
    model: ir.Model, values: Sequence[ir.Value], inputs: Sequence[InputSpec], manifest: Manifest, length: int
) -> dict[ir.Value, Array]:
    """The values, for one row of tokens without padding; those that cannot be computed alone are left out."""
    known = {value: value.const_value.numpy() for value in values if value.const_value is not None}
    uncomputed = [value for value in values if value not in known]
    if not uncomputed:
        return known
    limits = manifest.limits
    tokens = None if limits.proof_image_sizes else min(length, limits.max_length or length)
    named = feeds.sizes(manifest.inputs, limits, batch=1, length=tokens, past=None)
    if limits.proof_image_sizes:
        named[HEIGHT], named[WIDTH] = max(limits.proof_image_sizes, key=math.prod)
    # inputs with other axes, such as features of an image, say nothing about positions
    sized = [spec for spec in inputs if all(isinstance(axis, int) or axis in named for axis in spec.axes)]
    fed = feeds.draw(sized, limits, named)
    for spec in sized:
        if spec.role == "positions" and spec.default is not None:  # counted by the mask
            shape = [axis if isinstance(axis, int) else named[axis] for axis in spec.axes]
            fed[spec.name] = np.full(shape, spec.default, np.int64)
    subgraph = Subgraph(model, uncomputed)
    for value in subgraph.model.graph.initializers.values():
        if value.const_value is not None:  # external weights have no folder in a model in memory
            value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    computed = next(iter(subgraph.for_samples([fed])))
    return known if computed is None else known | dict(zip(uncomputed, computed, strict=True))


def _kind(what: str, array: Array, numbering: Mapping[str, Array]) -> Iterator[Positions]:
    """The value as positions of a kind; nothing where it has a shape of none."""
    if what == "by_distance" and "normaliser" in numbering:
        return  # FIRE's distances before its network
    if what == "by_distance" and array.ndim == 2 and array.shape[1] > 1:
        if "codes" in numbering:
            yield from _grid(array, numbering["codes"], _lowest(numbering))
        else:
            yield Positions("distance", _unmasked(array), first=_lowest(numbering))
    elif what in ("by_distance", "table") and array.ndim in (2, 3):
        lengths = np.linalg.norm(array, axis=-1)
        yield Positions("table", np.atleast_2d(lengths), first=_lowest(numbering))
    elif what == "bias" and array.ndim == 4 and min(array.shape[2:]) > 1:
        scores = _unmasked(array[0])
        if len(np.unique(scores[np.isfinite(scores)])) > 1:
            yield Positions("pairs", scores)
    elif what == "vectors" and array.ndim in (2, 3) and array.shape[-2] > 1:
        yield Positions("vectors", array.reshape(-1, *array.shape[-2:])[0])


def _lowest(numbering: Mapping[str, Array]) -> int:
    return int(numbering["lowest"].reshape(-1)[0]) if "lowest" in numbering else 0


def _grid(by_offset: Array, codes: Array, lowest: int) -> Iterator[Positions]:
    """Scores by offset as maps; tokens of a row have consecutive codes (`posexport.graph.ops.grid_scores`).

    Codes of two tokens differ by 0 in the middle of the map. The first and last entries are for tokens without a
    place, for example a class token.
    """
    breaks = np.flatnonzero(np.diff(np.unique(codes)) != 1)
    columns = 2 * int(np.diff([-1, *breaks, len(np.unique(codes)) - 1]).max()) - 1
    middle, width = -lowest, by_offset.shape[1]
    rows = (2 * min(middle, width - 1 - middle) + 1) // columns
    rows -= 1 - rows % 2
    if rows > 0:
        reach = (rows * columns - 1) // 2
        placed = by_offset[:, middle - reach : middle + reach + 1]
        yield Positions("grid", placed.reshape(len(placed), rows, columns))


def _unmasked(scores: Array) -> Array:
    return np.where(scores > _MASKED, scores, -np.inf)


def _halved(angles: Array) -> Array:
    """Angles by pair: tables for all channels have each twice, the halves or the channels of a pair."""
    pairs = angles.shape[1] // 2
    if angles.shape[1] % 2 == 0:
        if np.array_equal(angles[:, :pairs], angles[:, pairs:]):
            return angles[:, :pairs]
        if np.array_equal(angles[:, ::2], angles[:, 1::2]):
            return angles[:, ::2]
    return angles


def _merged(drawn: Iterable[Positions]) -> list[Positions]:
    """Equal values once: queries and keys, and layers, may have a copy each."""
    merged: list[Positions] = []
    for one in drawn:
        for number, old in enumerate(merged):
            if (old.kind, old.first) == (one.kind, one.first) and np.array_equal(old.values, one.values):
                merged[number] = replace(old, uses=old.uses + one.uses)
                break
        else:
            merged.append(one)
    return merged
