"""What is decided of a program's values: the kind of each, and its type.

A program is a graph, its branches and loops, and a function for every call (`instances`). Going forward in the order of
execution, every value gets its `Kind` and, if it is an activation, whether it has 16 bits (`forward`). Going back,
values that any type would do for - parameters, masks, what is only moved - get the type that their readers need, so
that a cast stands as early as nothing has to be computed for it, and once (`backward`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from posexport.precision.half.instances import Calls
from posexport.precision.half.kernels import Kernels
from posexport.precision.half.kinds import MOVES, SMALL, Info, Kind, is_float_cast

#: ``wide``: float32, to compute with activations; ``exact``: float32, because positions are computed from it
Need = Literal["half", "wide", "exact"]


@dataclass
class Flow:
    """What is decided of a program's values and nodes.

    Attributes:
        calls: the function of every call.
        kernels: which operators there are kernels for in 16 bits.
        types: element types before the change.
        info: of every float32 value.
        contents: integers that depend on tokens, not on their positions alone: what they index is an activation.
        needs: what the readers of a value need.
        half: values that have 16 bits in the end.
        node_half: for a node that computes, whether it does in 16 bits.
    """

    calls: Calls
    kernels: Kernels
    largest: float
    types: dict[ir.Value, ir.DataType] = field(default_factory=dict)
    info: dict[ir.Value, Info] = field(default_factory=dict)
    contents: set[ir.Value] = field(default_factory=set)
    needs: defaultdict[ir.Value, set[Need]] = field(default_factory=lambda: defaultdict(set))
    half: set[ir.Value] = field(default_factory=set)
    node_half: dict[ir.Node, bool] = field(default_factory=dict)

    def floats(self, values: Iterable[ir.Value | None]) -> list[ir.Value]:
        """Of the values those that are float32."""
        return [value for value in values if value is not None and value in self.info]

    def settle(self, value: ir.Value) -> bool:
        """Decide the type of a value by its readers: whether it has 16 bits."""
        info, needs = self.info.get(value), self.needs[value]
        if info is None:
            return False
        if needs == {"half"}:
            half = True
        elif info.kind in (Kind.WEIGHT, Kind.TABLE) and needs:
            half = "exact" not in needs or info.size > SMALL
        else:
            half = info.half
        self.put(value, half=half)
        return half

    def settle_all(self, outputs: Sequence[ir.Value]) -> bool:
        """One type for all outputs of a node that only moves."""
        union = set().union(*(self.needs[value] for value in outputs))
        for value in outputs:
            self.needs[value] = set(union)
        settled = {self.settle(value) for value in outputs}
        return settled == {True}

    def put(self, value: ir.Value, *, half: bool) -> None:
        if half and value in self.info:
            self.half.add(value)
        else:
            self.half.discard(value)

    def need_of(self, value: ir.Value, half: bool) -> Need:
        """What ``value`` needs of the one that it is elsewhere."""
        if half:
            return "half"
        return "exact" if "exact" in self.needs[value] else "wide"


def data_inputs(node: ir.Node) -> Sequence[ir.Value | None]:
    """The operands whose numbers become the result's."""
    return node.inputs[:1] if node.op_type in MOVES or is_float_cast(node) else node.inputs
