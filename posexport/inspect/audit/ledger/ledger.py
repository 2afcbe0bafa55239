"""Accounts for every tensor of a checkpoint in a graph, and for every large weight of the graph in the checkpoint."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from posexport.inspect.audit.ledger.checkpoint import Stored, read_checkpoint
from posexport.inspect.audit.ledger.match import RELATED, SAME, SAME_ROWS, Match, Pool, covered
from posexport.inspect.audit.ledger.profiles import FLAT, Array, Item, profiled
from posexport.inspect.audit.ledger.weights import Weight, weights
from posexport.inspect.audit.reading.folder import Folder
from posexport.inspect.audit.reading.read import read_model

#: elements from which a weight that no checkpoint has is worth a word
LARGE = 1024
_VARIANCE = ".running_var"
#: the error of a quantized weight by that of rounding it, from which it is another: a zero point that is 1 off has 3.5
_STEPS, _ROUNDING = 2.8, 2e-3
#: the part of rows that are all of them, and the part from which some are
_WHOLE, _PART = 0.98, 0.05
#: tensors of checkpoints that no graph needs: counters, masks, frequencies, what only training reads
_NO_WEIGHTS = re.compile(
    r"(num_batches_tracked|position_ids|inv_freq|masked_bias|masked_spec_embed|mask_token|mask_emb|attn\.bias|relative_position_index"
    r"|running_(mean|var)|relative_coords_table|logit_scale)$"
)
#: functions of weights that are computed once: state decays, norms that are stored as 1 + weight
_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "-exp": lambda x: -np.exp(x),
    "1 + w": lambda x: 1 + x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
}


@dataclass(frozen=True)
class Entry:
    """A tensor of the checkpoint.

    Attributes:
        name: its name there.
        shape: its sizes.
        matches: the weights of the graph that have it; none: the graph lost it.
        how: in which form.
        rows: (how many of its rows are in the graph, of how many) where some are missing.
        plain: its elements are equal, as those of other tensors may be.
    """

    name: str
    shape: tuple[int, ...]
    matches: tuple[Match, ...]
    how: str
    rows: tuple[int, int] | None = None
    plain: bool = False


@dataclass(frozen=True)
class Differing:
    """A weight of the graph with the name or nearly the values of a tensor of the checkpoint, and other values.

    Attributes:
        name: of the tensor.
        item: the graph's weight.
        error: relative distance; None: the values have nothing in common.
    """

    name: str
    item: Item
    error: float | None


@dataclass(frozen=True)
class Ledger:
    """Both sides' tensors.

    Attributes:
        checkpoint: the folder or file.
        entries: every tensor of the checkpoint that the graph has, in whatever form.
        lost: those that it has not.
        differing: those that it has with other values.
        unknown: large weights of the graph that are none of the checkpoint's.
        unmatched: all weights of the graph that no tensor has, small and computed ones too.
        batch_norms: names of modules that have a running variance; a convolution in front of one is scaled by it.
        config: config.json of the checkpoint; empty where there is none.
        nodes: names of weights -> the first node that reads each.
    """

    checkpoint: Path
    entries: Sequence[Entry]
    lost: Sequence[Item]
    differing: Sequence[Differing]
    unknown: Sequence[Item]
    unmatched: Sequence[Item]
    batch_norms: frozenset[str]
    config: Mapping[str, Any]
    nodes: Mapping[str, ir.Node | None]

    def summary(self) -> str:
        """How many tensors are in the graph, and in which form."""
        forms = Counter(entry.how for entry in self.entries)
        total = len(self.entries) + len(self.lost) + len(self.differing)
        listed = ", ".join(f"{number} {how}" for how, number in forms.most_common())
        return f"{len(self.entries)} of {total} tensors of {self.checkpoint.name} are in the graph ({listed})"


def ledger(checkpoint: Path, graphs: Sequence[Path]) -> Ledger:
    """The ledger of the parts of one model, each a graph, with ``checkpoint``.

    Raises:
        PosexportError: the checkpoint has no safetensors file, or a damaged one.
    """
    stored = read_checkpoint(checkpoint)
    nodes: dict[str, ir.Node | None] = {}
    in_graph: list[Item] = []
    for path in graphs:
        for weight in weights(read_model(path).graph):
            nodes.setdefault(weight.name, weight.node)
            in_graph.append(_of_graph(weight))
    matching = _Matching(list(_of_checkpoint(stored)), Pool(in_graph), stored)
    matching.run()
    config = Folder(checkpoint if checkpoint.is_file() else checkpoint / "model.safetensors").object("config.json")
    norms = frozenset(name.removesuffix(_VARIANCE) for name in stored if name.endswith(_VARIANCE))
    sources = Pool([item for item in matching.items if not item.plain])
    unknown = [item for item in matching.left() if _is_unknown(item, sources)]
    return Ledger(
        checkpoint, matching.entries, matching.lost, matching.differing, unknown, matching.left(), norms, config, nodes
    )


def _of_graph(weight: Weight) -> Item:
    array = weight.load()
    item = profiled(weight.name, array)
    item.bits, item.scaled, item.step = weight.bits, weight.scaled, weight.step
    return item


def _of_checkpoint(stored: Mapping[str, Stored]) -> Iterator[Item]:
    """The tensors with weights; those that weight norm keeps in two parts as one."""
    for name, tensor in stored.items():
        if not tensor.is_float or _NO_WEIGHTS.search(name) or np.prod(tensor.shape) < 2:
            continue
        for magnitude, direction in (("weight_g", "weight_v"), ("original0", "original1")):
            if name.endswith(magnitude) and name.removesuffix(magnitude) + direction in stored:
                break
            if name.endswith(direction) and (pair := stored.get(name.removesuffix(direction) + magnitude)):
                yield profiled(name, _normed(pair.array(), tensor.array()))
                break
        else:
            yield profiled(name, tensor.array())


def _normed(magnitude: Array, direction: Array) -> Array:
    """g * v / |v|, the norm over the axes along which ``g`` has one element."""
    axes = tuple(axis for axis, size in enumerate(magnitude.shape) if size == 1)
    v = direction.astype(np.float32)
    weight: Array = magnitude.astype(np.float32) * v / np.sqrt(np.square(v).sum(axis=axes, keepdims=True))
    return weight


class _Matching:
    """Matches tensors by the cheapest comparison first, and what that leaves by the next."""

    def __init__(self, items: Sequence[Item], graph: Pool, stored: Mapping[str, Stored]) -> None:
        self.items, self.graph, self.stored = items, graph, stored
        self.entries: list[Entry] = []
        self.differing: list[Differing] = []
        self.lost: list[Item] = []
        self._used: set[int] = set()

    def run(self) -> None:
        """Fill `entries`, `differing` and `lost`."""
        rest = [item for item in self.items if not self._by_size(item) and not item.plain]
        left = Pool(self.left())
        rest = [item for item in rest if not self._by_function(item, left) and not self._in_larger(item, left)]
        rest = [item for item in rest if not self._in_parts(item, left, whole=True)]
        rest = [item for item in rest if not self._differs(item, left)]
        self.lost = [item for item in rest if not self._in_parts(item, left, whole=False)]

    def left(self) -> list[Item]:
        """Weights of the graph that no tensor has yet."""
        return [item for item in self.graph.items if id(item) not in self._used and not item.plain]

    def _enter(self, item: Item, matches: Iterable[Match], how: str, rows: tuple[int, int] | None = None) -> bool:
        matches = tuple(matches)
        self._used.update(id(match.item) for match in matches)
        self.entries.append(Entry(item.name, item.shape, matches, how, rows, item.plain))
        return True

    def _by_size(self, item: Item) -> bool:
        """Matrices of one size: as they are, transposed, scaled, quantized."""
        best = _same(item, self.graph)
        if best is None or best.error > (SAME[best.item.bits] if best.item.scaled else SAME_ROWS):
            return False
        if best.item.bits < 16 and best.item.step and best.error > _STEPS * best.item.step / best.item.rms + _ROUNDING:
            self._used.add(id(best.item))
            self.differing.append(Differing(item.name, best.item, best.error))
            return True
        return self._enter(item, [best], best.how)

    def _by_function(self, item: Item, left: Pool) -> bool:
        computed = _computed(item, left, self.stored)
        return computed is not None and self._enter(item, [computed[1]], computed[0])

    def _in_larger(self, item: Item, left: Pool) -> bool:
        held = left.holding(item)
        return held is not None and held.error <= SAME[held.item.bits] and self._enter(item, [held], "joined")

    def _in_parts(self, item: Item, left: Pool, *, whole: bool) -> bool:
        """Rows in several weights, or in another order; not ``whole``: some of them."""
        rows, parts = max(left.splits(item), key=lambda split: covered(split[1], split[0]) / split[0], default=(1, []))
        have = covered(parts, rows)
        if have == rows:
            return self._enter(item, parts, "split")
        scattered, share = left.scattered(item)
        if share > _WHOLE:
            return self._enter(item, scattered, "reordered")
        if whole or len(item.shape) < 2:
            return False
        if share > max(_PART, have / rows):
            total = sum(match.rows for match in scattered)
            return self._enter(item, scattered, "in part", (total, round(total / share)))
        return have > rows * _PART and self._enter(item, parts, "in part", (have, rows))

    def _differs(self, item: Item, left: Pool) -> bool:
        """A weight with nearly the tensor's values, or with its name and size."""
        unused = [w for w in left.items if id(w) not in self._used]
        named = [w for w in unused if sorted(w.shape) == sorted(item.shape) and _are_names(item.name, w.name)]
        near = _same(item, Pool(named) if named else left)
        if near is not None and near.error <= RELATED and id(near.item) not in self._used:
            other = Differing(item.name, near.item, near.error)
        elif len(named) == 1:
            other = Differing(item.name, named[0], None)
        else:
            return False
        self._used.add(id(other.item))
        self.differing.append(other)
        return True


def _same(item: Item, graph: Pool) -> Match | None:
    """The nearest weight of the size, up to a factor; up to one for each row where scales are not known."""
    best = graph.same(item)
    if best is not None and best.item.scaled and best.error <= SAME[best.item.bits]:
        return best
    by_row = graph.same(item, by_row=True)
    if by_row is not None and by_row.error <= (1e-3 if by_row.item.scaled else SAME_ROWS):
        return by_row
    return best if best is not None and best.item.scaled else None


def _computed(item: Item, graph: Pool, stored: Mapping[str, Stored]) -> tuple[str, Match] | None:
    """A weight that is a function of a small tensor's elements."""
    if np.prod(item.shape) > FLAT or item.name not in stored:
        return None
    values = stored[item.name].array().astype(np.float32)
    for name, function in _FUNCTIONS.items():
        with np.errstate(over="ignore"):
            results = function(values)
        if np.isfinite(results).all():
            match = graph.same(profiled(item.name, results))
            if match is not None and match.error <= SAME[max(match.item.bits, 16)]:
                return name, match
    return None


def _are_names(first: str, second: str) -> bool:
    """Whether one name is the other with modules in front: ``encoder.weight``, ``bert.encoder.weight``."""
    return first == second or first.endswith("." + second) or second.endswith("." + first)


def _is_unknown(item: Item, sources: Pool) -> bool:
    """Whether a weight is a large matrix and neither rows of the checkpoint's tensors nor a part of one."""
    if np.prod(item.shape) < LARGE or item.plain or max(item.shape) == np.prod(item.shape):
        return False
    held = sources.holding(item)
    if held is not None and held.error <= SAME[item.bits]:
        return False
    return sources.scattered(item)[1] < 0.5
