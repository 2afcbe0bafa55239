"""Position operators: the PyTorch function, the ONNX function and the float64 oracle of each, in one file.

Shape letters, in names and docstrings: B batch, H heads, T queries, S keys, D head size, R rows of a table.

``register`` requires all three and the cases that the operator is tested on. While ``torch.onnx.export`` traces, an
operator emits one node of domain ``posexport``; its ONNX function, which expresses the node in standard operators, is
attached to the finished model (`posexport.graph.lowering.functions`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript.values import Opset

from posexport.base.registry import Registry
from posexport.base.spec import DOMAIN as DOMAIN
from posexport.graph.ops.files import FILES
from posexport.graph.ops.tensor import Tensor
from posexport.graph.ops.tracing import traced_as

#: the opset of the functions' domain
OPSET = Opset(DOMAIN, 1)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Sizes to test an operator on; ``table`` determines the rows of its table (the paper's m or k)."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    table: int
    #: position of the first query minus position of the first key; below 2**31, where ONNX Runtime's Min and Max of
    #: int64 begin to go wrong on x86 (Eigen's SSE2 code; onnxruntime pull request 25280)
    offset: int = 0


#: cases of an operator with a table of ``table`` distances from ``-table // 2`` up
CASES_BY_DISTANCE = (
    Case(batch=1, heads=5, queries=1, keys=1, head_size=3, table=1),
    Case(batch=2, heads=5, queries=17, keys=19, head_size=4, table=40),
    Case(batch=2, heads=3, queries=7, keys=19, head_size=4, table=6, offset=12),
    Case(batch=1, heads=2, queries=1, keys=23, head_size=6, table=64, offset=22),
    Case(batch=3, heads=2, queries=29, keys=1, head_size=6, table=7),
    Case(batch=4, heads=2, queries=29, keys=5, head_size=6, table=11, offset=-3),
    Case(batch=1, heads=2, queries=4, keys=9, head_size=6, table=16, offset=90),
    Case(batch=1, heads=1, queries=301, keys=277, head_size=4, table=600),
)


@dataclass(frozen=True)
class Rows:
    """The axis of an operator's parameter that has a row for every query, key or distance (query minus key) of a call.

    ``first``: a parameter, and the place in it that holds the position or distance of row 0. Later ones follow one by
    one, and what has no row takes the nearest one. None: the rows are those of qpos or kpos, in order.
    """

    of: Literal["queries", "keys", "distances"]
    axis: int
    first: tuple[str, int] | None = None


#: of ``by_distance`` [H, W, ...], from the distance ``lowest`` [1] up
BY_DISTANCE = Rows("distances", 1, ("lowest", 0))


@dataclass(frozen=True)
class Operator:
    """One registered position operator.

    Attributes:
        name: the ``op_type`` of its nodes, in CamelCase.
        eager: the PyTorch function: plain operations, so that autograd, ``torch.compile`` and ``torch.export`` see
            through it.
        function: the onnxscript function of the same signature.
        oracle: the definition in float64 NumPy.
        takes: the tensors of attention that it reads, out of ``q``, ``k``, ``probs``: the first inputs.
        own: its parameters (tables, biases), by name: the next inputs. The last two are the positions, qpos [T] and
            kpos [S].
        draw: random parameters for a case.
        gives: ``scores`` ([B, H, T, S], or a batch of 1 if equal for all rows), ``values`` ([B, H, T, D]), or
            ``base``: scores that replace q k^T.
        scaled: scores are added before attention scales, as in ``scale * (q k^T + scores)``, not after.
        linear: scores are linear in q, k and the parameters in ``scaled_along`` together: scaling these scales them.
        scaled_along: parameters to scale together with q and k (a bias that is added to q).
        wide: parameters that stay float32 or wider in a model of half precision.
        inner: parameters [..., H, E] or [..., H, T, E] that cost a product over E for every pair of tokens.
        shifts: scores depend on the distance i - j alone (a Toeplitz bias).
        counts: a score depends on further keys than its key, masked ones among them.
        rows: parameters that have a row for every query, key or distance of a call; the others have none.
        lead: batch size and heads of the scores of an operator without ``takes``, from its parameters.
    """

    name: str
    eager: Callable[..., Tensor]
    function: Any
    oracle: Callable[..., Array]
    cases: Sequence[Case]
    draw: Callable[[Case, np.random.Generator], Sequence[NDArray[Any]]]
    takes: tuple[str, ...]
    gives: str
    own: tuple[str, ...] = ("table",)
    scaled: bool = True
    linear: bool = True
    scaled_along: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    shifts: bool = False
    counts: bool = False
    rows: Mapping[str, Rows] = field(default_factory=dict)
    lead: Callable[..., tuple[int, int]] = lambda first, *_: (1, first.shape[0])

    def _node(self, *tensors: Tensor) -> Tensor:
        return symbolic(self.name, tensors, like=tensors[0], shape=self.shape(*tensors))

    @traced_as(_node)
    def __call__(self, *tensors: Tensor) -> Tensor:
        """Compute in PyTorch; while ``torch.onnx.export`` traces, emit a node."""
        return self.eager(*tensors)

    def shape(self, *tensors: Tensor) -> tuple[int, ...]:
        """The output's shape for these inputs."""
        first, parameters, queries, keys = tensors[0], tensors[len(self.takes)], tensors[-2], tensors[-1]
        lead = first.shape[:3] if self.takes else (*self.lead(*tensors), queries.shape[0])
        return (*lead, parameters.shape[-1] if self.gives == "values" else keys.shape[0])


def symbolic(
    name: str,
    tensors: Sequence[Tensor | None],
    *,
    like: Tensor,
    shape: Sequence[int],
    **attributes: str | float | Sequence[int],
) -> Tensor:
    """A node of domain ``posexport`` in the graph being traced."""
    import torch

    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{name}", tensors, {**attributes}, dtype=like.dtype, shape=shape, version=1
    )


OPERATORS: Registry[Operator] = Registry(
    "operators", Operator, {name: f"posexport.graph.ops.{file}" for name, file in FILES.items()}
)
#: onnxscript functions of our domain that operators' functions call, by name
HELPERS: dict[str, Any] = {}


def helper(function: Any) -> Any:
    """Register an onnxscript function that operators' functions call; it is attached with them."""
    HELPERS[function.name] = function
    return function


#: begins the names of functions for queries and keys in whole chunks (`posexport.graph.ops.skew`)
WHOLE = "Whole"


def protos(function: Any, opset: int, *, whole: bool = False) -> list[onnx.FunctionProto]:
    """An onnxscript function for a model of ``opset``, preceded by the helpers that it calls.

    ``whole``: the variant for queries and keys in whole chunks (prefix `WHOLE`), which calls helpers of that prefix
    where they exist.
    """
    proto: onnx.FunctionProto = function.to_function_proto()
    if whole:
        proto.name = WHOLE + proto.name
        for node in proto.node:
            if node.domain == DOMAIN and WHOLE + node.op_type in HELPERS:
                node.op_type = WHOLE + node.op_type
    for entry in proto.opset_import:
        if not entry.domain:
            entry.version = opset
    called = {node.op_type for node in proto.node if node.domain == DOMAIN}
    return [*(helper for name in sorted(called) for helper in protos(HELPERS[name], opset)), proto]


def functions(function: Any, opset: int, *, whole: bool = False) -> list[ir.Function]:
    """`protos` as functions of onnx_ir."""
    return [ir.serde.deserialize_function(proto) for proto in protos(function, opset, whole=whole)]


def register(operator: Operator) -> Operator:
    """Add an operator to the catalogue. Raises ValueError for one that could not be tested or exported."""
    if OPERATORS.is_taken(operator.name, by=operator.eager.__module__):
        raise ValueError(f"operator {operator.name} is registered twice")
    if not operator.cases:
        raise ValueError(f"operator {operator.name} has no cases: nothing would test it")
    if not set(operator.rows) <= set(operator.own):
        raise ValueError(
            f"operator {operator.name} has rows of {sorted(operator.rows)}, its parameters are {operator.own}"
        )
    proto = operator.function.to_function_proto()
    if not proto.output:
        raise ValueError(f"the onnxscript function of {operator.name} has no output: annotate its return type")
    if proto.name != operator.name or proto.domain != DOMAIN:
        raise ValueError(f"operator {operator.name} has a function called {proto.domain}::{proto.name}")
    OPERATORS[operator.name] = operator
    return operator
