"""Removes from a graph what int8 chooses for each layer by its activations, so that layers can be compared.

Rows of activations are divided by powers of two, in a node or in the normalisation before them, and are rounded about
one of two zero points: layers of one kind differ in both. What is removed is checked: here, that a row has one zero
point; by `posexport.proof.quantized.factors`, that weights are the parameters times the powers of two.
"""

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, NodeProto, numpy_helper

from posexport.graph.precision.rows.activation_scales import PLAIN, ZERO_POINTS, highest_step
from posexport.graph.precision.rows.activations import down, step, zero_point
from posexport.proof.quantized.factors import smooths
from posexport.proof.quantized.records import StoredError

_ZERO_POINTS = {zero_point(zero): zero for zero in ZERO_POINTS}
_STEPS = {step(highest_step(zero)): zero for zero in ZERO_POINTS}
_LOWER = {down(zero): zero for zero in ZERO_POINTS if zero != PLAIN.zero}
#: constants of one zero point, and the zero point
_CONSTANTS = _ZERO_POINTS | _STEPS | _LOWER
_PLAIN = {
    zero_point(PLAIN.zero): np.uint8(PLAIN.zero),
    step(highest_step(PLAIN.zero)): np.float32(1 / highest_step(PLAIN.zero)),
}


def with_plain_rows(model: ModelProto) -> None:
    """Give all rows the zero point 128 and no factors, in place; divided parameters of normalisations stay.

    Raises StoredError if a row is rounded about one zero point with the steps of another.
    """
    nodes = list(model.graph.node)
    _check_zero_points(nodes)
    plain = zero_point(PLAIN.zero), step(highest_step(PLAIN.zero))
    names = dict.fromkeys(_ZERO_POINTS, plain[0]) | dict.fromkeys(_STEPS, plain[1])
    kept = []
    for node in nodes:
        if smooths(node.op_type, *node.input[1:2]):
            names[node.output[0]] = names.get(node.input[0], node.input[0])
            continue
        copied = NodeProto()
        copied.CopyFrom(node)
        if node.op_type == "Mul" and node.input[1] in _LOWER:
            copied.op_type = "Neg"
            del copied.input[1]
        for at, name in enumerate(copied.input):
            copied.input[at] = names.get(name, name)
        kept.append(copied)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    missing = {name for node in kept for name in node.input} - {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in _PLAIN.items() if name in missing
    )


def _check_zero_points(nodes: Sequence[NodeProto]) -> None:
    """Raises StoredError where the constants that scale and round a row belong to several zero points."""
    producers = {output: node for node in nodes for output in node.output}
    of_value: dict[str, int] = dict(_CONSTANTS)
    for node in nodes:
        read = {
            "Mul": node.input if any(name in _CONSTANTS for name in node.input) else [],
            "Max": node.input,
            "Div": node.input[1:],
            "QuantizeLinear": node.input[1:],
        }.get(node.op_type, [])
        zeros = {of_value[name] for name in read if name in of_value}
        if node.op_type == "Neg" and node.input[0] in producers and producers[node.input[0]].op_type == "ReduceMin":
            zeros = {PLAIN.zero}
        if len(zeros) > 1:
            raise StoredError(f"{node.output[0]}: rows have the zero points {sorted(zeros)} at once, and need one")
        of_value |= {output: zero for output in node.output for zero in zeros}
