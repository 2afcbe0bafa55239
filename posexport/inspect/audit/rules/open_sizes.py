"""PX409: sizes that a provider wants to know when it opens the file, and that the file leaves open."""

from collections.abc import Iterator

from posexport.base.targets.listed import audited
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    provider = audited()[subject.provider]
    if not provider.sizes:
        return
    shapes = {value: subject.sizes.of(value) for value in subject.graph.inputs}
    unknown = [value for value, sizes in shapes.items() if sizes is None or not all(isinstance(n, int) for n in sizes)]
    if unknown:
        texts = [f"{value.name!r} {subject.sizes.shape_text(shapes[value] or ())}" for value in unknown]
        yield Place(
            f"open sizes of {', '.join(texts)}: {provider.label} {provider.sizes}",
            [reader for value in unknown for reader, _ in value.uses()],
        )


RULE = Rule(
    code="PX409",
    name="open-sizes",
    severity="warning",
    finds="open sizes of inputs where the provider compiles a graph for one size (--provider coreml, dml, qnn)",
    why="Such a provider plans memory and kernels when it opens a file; what depends on sizes of a call stays with the "
    "CPU, or is compiled again.",
    remedy="Convert with posexport convert --static batch_size=1,sequence_length=128; of other exporters' files "
    "onnxruntime.tools.make_dynamic_shape_fixed sets sizes, but leaves the nodes that compute them.",
    check=_check,
    provider="qnn",
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        open (float[B, 4] x, float[4, 3] w) => (float[B, 3] y)
        { y = MatMul (x, w) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        fixed (float[7, 4] x, float[4, 3] w) => (float[7, 3] y)
        { y = MatMul (x, w) }
    """,
)
