"""What values of sizes and weights are for one row without padding, computed at several lengths."""

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from posexport.base.spec import SEQUENCE
from posexport.graph.dataflow import reachable
from posexport.graph.partial import Array, Subgraph
from posexport.graph.passes.cache.colours import Colours, refuse
from posexport.graph.passes.graph_pass import NotInsertedError
from posexport.graph.passes.recognise.far_pairs import beyond, far_pairs, is_of_pairs
from posexport.graph.passes.recognise.mask_structure import may_differ_beyond
from posexport.graph.queries import sizes
from posexport.graph.single_row import ELEMENTWISE

#: lengths of all values, and the longest one of those with a row for each token
_LENGTHS, _FAR = (2, 5, 8, 33, 301), 4096
#: elements of all values of pairs of tokens together, and the fewest tokens all the same
_PAIRS, _FEWEST = 1 << 28, 512
#: elements of a value for each token, at most, which is computed for more tokens
_NARROW, _NONE = 16, np.empty(0)
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


class Known:
    """The values that content reads and does not compute, and all that these are computed from.

    Every claim is about one row with a mask of ones: the module's result for the row alone, as a
    decoder with a cache must compute, however its rows are padded. Claims about values with a row for each token are
    looked at up to the longest input, or up to 4,096 tokens; what may differ beyond is refused (`check`).
    """

    def __init__(self, model: ir.Model, colours: Colours, limit: int | None) -> None:
        self.model, self.colours, self.limit = model, colours, limit
        self.far = _FAR if limit is None else min(limit, _FAR)
        self.lengths = sorted({length if limit is None else min(length, limit) for length in _LENGTHS})
        if len(self.lengths) < 2:
            raise NotInsertedError(f"inputs of at most {limit} tokens do not show what follows from their number")
        self._arrays: dict[ir.Value, list[Array]] = {}
        self._far: dict[ir.Value, Array] = {}
        self._longest: dict[ir.Value, int] = {}
        self._of_queries: dict[ir.Value, Array] = {}
        self._differs: dict[tuple[ir.Value, int], bool] = {}
        read = self._read()
        for value in (colours.mask, colours.positions):
            if value is not None:
                self._arrays[value] = [self._fed(value, length) for length in self.lengths]
                self._far[value] = self._fed(value, self.far)
        self._compute(read)
        # before anything changes: whether something may begin or end beyond what is looked at
        for value in read:
            for longest in (self.lengths[-1], self._longest.get(value, self.far)):
                if limit is None or longest < limit:
                    self._differs[value, longest] = may_differ_beyond(Subgraph(model, [value]).model.graph, longest)

    def _fed(self, value: ir.Value, length: int) -> Array:
        """An input for one row of ``length`` tokens without padding."""
        if value is self.colours.mask:
            return np.ones((1, length), np.int64)
        return np.arange(length)[None] if value is self.colours.positions else np.zeros((1, length), np.int64)

    def _read(self) -> list[ir.Value]:
        """The sized values that content reads, and what these are computed from."""
        colours = self.colours
        ends = [
            value
            for node in self.model.graph
            if colours.content & set(node.outputs)
            for value in node.inputs
            if value is not None and value in colours.sized
        ]

        def onward(value: ir.Value) -> Iterable[ir.Value | None]:
            node = value.producer()
            return () if node is None else [x for x in node.inputs if x is not None and x in colours.sized]

        skipped: Collection[ir.Value | None] = {colours.ids, colours.mask, colours.positions, *colours.opaque}
        return [value for value in reachable(ends, onward) if value not in skipped]

    def _compute(self, values: Sequence[ir.Value]) -> None:
        if not values:
            return
        subgraph = Subgraph(self.model, values)

        def at(length: int) -> list[Array]:
            computed = self._run(subgraph, length)
            if computed is None:
                failing = (x for x in reversed(values) if self._run(Subgraph(self.model, [x]), length) is None)
                node = next(failing, values[0]).producer() or self.model.graph[0]
                refuse(node, f"what it computes from the number of tokens fails for {length} of them")
            return computed

        runs = [at(length) for length in self.lengths]
        for index, value in enumerate(values):
            self._arrays[value] = [run[index] for run in runs]
        rows = [value for value in values if len(self.token_axes(value)) < 2]
        of_pairs = [value for value in rows if is_of_pairs(value, SEQUENCE)]
        for some in (of_pairs, [value for value in rows if value not in of_pairs]):
            far = self._few(some) if some is of_pairs else self.far
            if some and far > self.lengths[-1]:
                subgraph = Subgraph(self.model, some)
                self._far = dict(zip(some, at(far), strict=True)) | self._far
                self._longest |= dict.fromkeys(some, far)
        for value in rows:
            if self._far.get(value, _NONE).size <= _NARROW * self.far:
                self._look_beyond(value)

    def _few(self, values: Sequence[ir.Value]) -> int:
        """The tokens at which ``values`` are computed, which are of pairs of tokens."""
        nodes = Subgraph(self.model, values).model.graph if values else ()
        shapes = [sizes(value) or () for node in nodes for value in node.outputs]
        over_pairs = [shape for shape in shapes if shape.count(SEQUENCE) > 1]
        pairs = sum(math.prod(size for size in shape if isinstance(size, int)) for shape in over_pairs)
        far = self.far
        while far > _FEWEST and pairs * far**2 > _PAIRS:
            far //= 2
        return far

    def _run(self, subgraph: Subgraph, length: int) -> list[Array] | None:
        return subgraph.run({value: self._fed(value, length) for value in subgraph.inputs}, {})

    def _look_beyond(self, value: ir.Value) -> None:
        """Compute a narrow value beyond every number in what computes it, such as a window of 4,096 tokens."""
        colours, subgraph = self.colours, Subgraph(self.model, [value])
        far = self._longest.get(value, self.far)
        length = beyond(subgraph.model.graph, far, self.limit)
        if length is None:
            return
        if not is_of_pairs(value, SEQUENCE):
            if (computed := self._run(subgraph, length)) is not None:
                self._far[value], self._longest[value] = computed[0], length
        else:  # of pairs of tokens, such as whether a query sees a key
            ones = {} if colours.mask is None else {colours.mask: 1}
            if (pairs := far_pairs(self.model, [value], SEQUENCE, far, self.limit, ones)) is not None:
                self._of_queries[value] = pairs.values[0]

    def has(self, value: ir.Value | None) -> bool:
        """Whether `arrays` has it."""
        return value in self._arrays

    def arrays(self, value: ir.Value) -> list[Array]:
        """The value at each of `lengths`, and at the longest one where it has a row for each token."""
        return [*self._arrays[value], *([self._far[value]] if value in self._far else [])]

    def all_lengths(self, value: ir.Value) -> list[int]:
        return [*self.lengths, *([self._longest.get(value, self.far)] if value in self._far else [])]

    def rank(self, value: ir.Value) -> int:
        return self._arrays[value][0].ndim if value in self._arrays else len(value.shape or ())

    def token_axes(self, value: ir.Value) -> list[int]:
        """The axes that have as many rows as there are tokens."""
        if value not in self.colours.sized or value.is_initializer():
            return []
        if value in self.colours.opaque or value not in self._arrays:
            return [axis for axis, size in enumerate(sizes(value) or ()) if size == SEQUENCE]
        arrays = list(zip(self.arrays(value), self.all_lengths(value), strict=True))
        return [axis for axis in range(arrays[0][0].ndim) if all(x.shape[axis] == length for x, length in arrays)]

    def constant_along(self, value: ir.Value, axes: Sequence[int]) -> Array | None:
        """One row of ``value`` where all rows along ``axes`` are equal, at every length."""
        beyond = self._of_queries.get(value)
        if value not in self._arrays or (self.may_differ(value) and beyond is None):
            return None
        first = self._arrays[value][0]
        for axis in axes:
            first = first.take([0], axis)
        looked = [*self.arrays(value), *([] if beyond is None else [beyond])]
        same = all(np.array_equal(x, np.broadcast_to(first, x.shape)) for x in looked)
        return first if same else None

    def counts(self, value: ir.Value) -> int | None:
        """c where ``value`` is c, c + 1, ... along its only axis of tokens."""
        axes = self.token_axes(value)
        number = value.dtype in (*_INTEGERS, ir.DataType.FLOAT)
        if value not in self._arrays or not number or len(axes) != 1 or self.may_differ(value):
            return None
        start = self._arrays[value][0].reshape(-1)[0]
        if not np.isfinite(start):
            return None
        pairs = zip(self.arrays(value), self.all_lengths(value), strict=True)
        same = all(x.size == length and (x.reshape(-1) == start + np.arange(length)).all() for x, length in pairs)
        return int(start) if same else None

    def may_differ(self, value: ir.Value) -> bool:
        """Whether a number or a table in what computes ``value`` is beyond the longest length it was looked at."""
        return self._differs.get((value, self.all_lengths(value)[-1]), False)

    def is_of_positions(self, value: ir.Value) -> bool:
        """Whether each row is computed from its position and constants alone, element by element."""
        node = value.producer()
        if self.counts(value) is not None:
            return True
        if node is None or node.domain or node.op_type not in (*ELEMENTWISE, "Unsqueeze"):
            return False
        sized = [x for x in node.inputs if x is not None and x in self.colours.sized]
        return bool(sized) and all(map(self.is_of_positions, sized))

    def check(self, node: ir.Node, value: ir.Value, axes: Sequence[int]) -> None:
        """Refuse unless the rows of fewer tokens are the first rows of more."""
        if value not in self._arrays:
            refuse(node, "a value of a position operator is read by its tokens")
        if axes and self.is_of_positions(value):
            return
        most = self.arrays(value)[-1]
        for array, length in zip(self.arrays(value), self.all_lengths(value), strict=True):
            first = most
            for axis in axes:
                first = first.take(range(length), axis)
            # cosines differ in the last bit by their place in a vector
            if first.shape != array.shape or not np.allclose(first, array, rtol=1e-5, atol=1e-6, equal_nan=True):
                refuse(node, f"{'a row' if axes else 'a number'} that it reads depends on how many tokens a call has")
        if self.may_differ(value):
            longest = self.all_lengths(value)[-1]
            refuse(node, f"what it reads has a number or a table beyond the {longest} tokens that were looked at")
