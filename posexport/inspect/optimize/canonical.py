"""A stranger's graph in the form that posexport's passes know: a newer opset, constants as weights, all sizes."""

import logging
from typing import Any

import numpy as np
import onnx_ir as ir

from posexport.base.targets.target import ATTENTION_OPSET
from posexport.errors import PosexportError
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.graph_pass import Rule, by_rules
from posexport.graph.queries import is_near, producer
from posexport.inspect.audit.analyses.sizes import Sizes

#: of the operators that passes and lowerings write
LEAST_OPSET = 18
#: constants of more elements are left for ONNX Runtime to fold: they would make the file larger
_MOST_FOLDED = 1 << 16


def canonical(model: ir.Model, path: object) -> None:
    """Raise the opset to the first with Attention, fold constants, share equal nodes and infer all sizes, in place.

    Raises:
        PosexportError: an opset that cannot be raised to one that passes write for.
    """
    import onnxscript.optimizer
    from onnx_ir.passes.common import CommonSubexpressionEliminationPass, LiftConstantsToInitializersPass
    from onnxscript import version_converter

    before = model.opset_imports.get("", 1)
    if before < ATTENTION_OPSET:
        # its warnings are for callers of its API
        logging.getLogger(version_converter.__name__).setLevel(logging.ERROR)
        try:
            version_converter.convert_version(model, ATTENTION_OPSET, fallback=before < LEAST_OPSET)
        except Exception as err:
            if before < LEAST_OPSET:
                raise PosexportError(
                    f"{path} has opset {before}, which could not be raised to {ATTENTION_OPSET}: {err!s:.200}; export "
                    f"it at opset {LEAST_OPSET} or later"
                ) from err
    onnxscript.optimizer.optimize_ir(model, input_size_limit=_MOST_FOLDED, output_size_limit=_MOST_FOLDED)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    CommonSubexpressionEliminationPass()(model)
    _divide_by_roots(model)
    sizes = Sizes(model)
    if _without_tests_of_sizes(model, sizes):
        sizes.infer()
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([_as_number(size) for size in value.shape])


def _divide_by_roots(model: ir.Model) -> None:
    """``x * (1 / Sqrt(y))`` as ``x / Sqrt(y)``, as passes and ONNX Runtime know normalisations by their root."""

    def by_one(op: Any, x: Any, one: Any, y: Any) -> Any:
        return op.Mul(x, op.Div(one, op.Sqrt(y)))

    def by_reciprocal(op: Any, x: Any, y: Any) -> Any:
        return op.Mul(x, op.Reciprocal(op.Sqrt(y)))

    def divided(op: Any, x: Any, y: Any, **_: Any) -> Any:
        return op.Div(x, op.Sqrt(y))

    def refusal(one: ir.Value | None = None, **_: ir.Value) -> str | None:
        return None if one is None or is_near(one, 1) else "it divides no 1"

    by_rules({"one": Rule(by_one, divided, refusal), "reciprocal": Rule(by_reciprocal, divided, refusal)}, model)


def _as_number(size: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """A size that inference calculated, such as ``6`` of ``12*axis0 // (2*axis0)``, as a number."""
    text = "" if isinstance(size, int) else str(size.value)
    return int(text) if text.isdecimal() else size


def _without_tests_of_sizes(model: ir.Model, sizes: Sizes) -> int:
    """Sizes in place of the test that older exporters write around the shape of an Expand: -1 keeps a size.

    Before: ``Where(Equal(shape, -1), 1, shape)``
    After:  ``shape``, or ``Add(Mul(shape, [1, 0, ..]), [0, 1, ..])`` where some are -1
    """
    count = 0
    for node in list(model.graph):
        test, shape = (producer(node.inputs[0], "Equal"), node.inputs[2]) if node.op_type == "Where" else (None, None)
        if test is None or shape is None or shape not in test.inputs:
            continue
        known, minus = (sizes.elements(value) for value in sorted(test.inputs, key=lambda value: value is not shape))
        if not known or not minus or any(size != -1 for size in minus):
            continue
        if not all(isinstance(size, int) or (size is not None and sizes.is_free(size)) for size in known):
            continue
        if -1 in known:
            g, ones = Builder.at(node), np.array([int(size == -1) for size in known])
            shape = g.Add(g.Mul(shape, 1 - ones), ones)
        replace(node.outputs[0], shape)
        count += 1
    return count
