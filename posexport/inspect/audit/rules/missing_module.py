"""PX508: a Dense or Normalize of modules.json that the graph lacks."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.analyses.pooling import pooled, vectors
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    names = [name for name, _ in subject.files.modules]
    if "Pooling" not in names:
        return
    after = names[names.index("Pooling") + 1 :]
    for output in vectors(subject.graph, subject.sizes):
        tail = pooled(output, subject.roles, subject.sizes)
        if tail is None:
            continue
        where: list[ir.Node | str] = [tail.node, output.name or ""]
        dense, projections = after.count("Dense"), len(tail.projections)
        if projections < dense:
            yield Place(f"modules.json has {dense} Dense, and {output.name!r} has {projections}", where)
        if "Normalize" in after and not tail.normalized:
            yield Place(
                f"modules.json ends in Normalize, and {output.name!r} is not divided by its norm",
                where,
                severity="warning",
                remedy="Divide vectors by their norm before dot products; cosine similarity is right as it is.",
            )


RULE = Rule(
    code="PX508",
    name="missing-module",
    severity="error",
    finds="a projection or normalisation of modules.json is missing behind the graph's pooling",
    why="Vectors of the transformer alone are in another space than those of the whole model: they fit no index and no "
    "threshold that was made with it.",
    remedy="Export all modules (posexport convert does), not the transformer with a pooling.",
    check=_check,
    reads="folder",
    files={
        "modules.json": '[{"type": "sentence_transformers.models.Transformer", "path": ""},'
        ' {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},'
        ' {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},'
        ' {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"}]',
        "1_Pooling/config.json": '{"pooling_mode": "cls"}',
    },
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        bare (float[B, T, 2] states) => (float[B, 2] sentence_embedding)
        <int64 zero = {0}>
        { sentence_embedding = Gather <axis = 1> (states, zero) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        whole (float[B, T, 2] states) => (float[B, 2] sentence_embedding)
        <int64 zero = {0}, float[2, 2] dense = {0.5, 2.0, -1.0, 3.0}, int64[1] last = {1}, float least = {1e-12}>
        {
            first = Gather <axis = 1> (states, zero)
            projected = MatMul (first, dense)
            norm = ReduceL2 (projected, last)
            safe = Clip (norm, least)
            sentence_embedding = Div (projected, safe)
        }
    """,
)
