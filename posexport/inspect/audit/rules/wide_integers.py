"""PX410: int64 inputs where a provider computes in int32."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.base.targets.listed import audited
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    provider = audited()[subject.provider]
    inputs = [value for value in subject.graph.inputs if value.dtype == ir.DataType.INT64]
    if provider.int64 and inputs:
        yield Place(
            f"inputs in int64, {', '.join(repr(value.name) for value in inputs)}: {provider.label} {provider.int64}",
            [reader for value in inputs for reader, _ in value.uses()],
        )


RULE = Rule(
    code="PX410",
    name="wide-integers",
    severity="note",
    finds="int64 inputs where the provider computes in int32 (--provider coreml, dml, qnn)",
    why="Token ids and masks fit into int32; each conversion is a node more, and some drivers lack one.",
    remedy="Convert with posexport convert --int32.",
    check=_check,
    provider="coreml",
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        wide (int64[1, 17] input_ids) => (float[1, 17, 2] y)
        <float[3, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
        { y = Gather (table, input_ids) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        narrow (int32[1, 17] input_ids) => (float[1, 17, 2] y)
        <float[3, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
        { y = Gather (table, input_ids) }
    """,
)
