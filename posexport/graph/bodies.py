"""Bodies of If, Scan and Loop: their graphs, inputs, loop-carried states and results."""

from collections.abc import Sequence

import onnx_ir as ir


def bodies(node: ir.Node) -> dict[str, ir.Graph]:
    """The graphs in a node's attributes, by the attribute: branches of If, the body of Loop and Scan."""
    return {
        name: attribute.as_graph()
        for name, attribute in node.attributes.items()
        if attribute.type == ir.AttributeType.GRAPH
    }


def with_bodies(top: ir.Graph) -> list[ir.Graph]:
    """A graph, and the bodies of its nodes, an outer one before those in it."""
    return [top, *top.subgraphs()]


def loop_inputs(node: ir.Node, body: ir.Graph) -> tuple[Sequence[ir.Value], Sequence[ir.Value | None]]:
    """The inputs of the body of a Scan or Loop, and the values passed to them; the branches of an If have none."""
    if node.op_type == "Loop":
        return body.inputs[1:], node.inputs[1:]
    return body.inputs, node.inputs


def loop_carried(node: ir.Node, body: ir.Graph) -> list[tuple[ir.Value, ir.Value]]:
    """Every loop-carried state, before and after the body; an If has none."""
    if node.op_type == "Loop":
        return list(zip(body.inputs[2:], body.outputs[1:], strict=False))
    states = len(body.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    return list(zip(body.inputs[:states], body.outputs[:states], strict=True))


def loop_results(node: ir.Node, body: ir.Graph) -> Sequence[ir.Value]:
    """The values of a body that become the outputs of its Scan, Loop or If."""
    return body.outputs[1:] if node.op_type == "Loop" else body.outputs
