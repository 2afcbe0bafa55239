"""PX305: an output that no input reaches, or that is an input."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.dataflow import inputs
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    fed = {value for value in subject.graph.inputs if not value.is_initializer()}
    for output in subject.graph.outputs:
        if not fed or output in subject.roles.present:
            continue
        source = origin(output)
        where = [node] if (node := output.producer()) is not None else [output.name or "?"]
        if source in fed:
            yield Place(f"output {output.name!r} is input {source.name!r} unchanged", where, severity="note")
        elif fed.isdisjoint(inputs(output, breaks=())):
            yield Place(f"output {output.name!r} is the same in every call: no input leads to it", where)


def origin(value: ir.Value) -> ir.Value:
    """The value that ``value`` is a copy of."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and not node.domain:
        value = node.inputs[0] or value
    return value


RULE = Rule(
    code="PX305",
    name="constant-output",
    severity="warning",
    finds="an output is the same in every call, or is an input unchanged",
    why="The exporter ran this part once and kept the result, or left the computation out; only parameters of the "
    "model (a scale, anchors) are meant to be constant.",
    remedy="Compare the output with the model's for two inputs; compute it in forward from the inputs, and export "
    "again.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        constant (float[B, 4] x) => (float[B, 4] y, float[2] pooled)
        <float[2] result = {1.0, 2.0}>
        {
            y = Relu (x)
            pooled = Identity (result)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        computed (float[B, 4] x) => (float[B, 4] y, float[B, 1] pooled)
        <int64[1] last = {-1}>
        {
            y = Relu (x)
            pooled = ReduceMean (x, last)
        }
    """,
)
