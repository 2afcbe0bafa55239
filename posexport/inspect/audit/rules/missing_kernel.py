"""PX401: operators and element types that a provider has no kernel for."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from posexport.base.targets.listed import audited
from posexport.inspect.audit.analyses.kernels import Missing, runtime
from posexport.inspect.audit.finding import Severity
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: domains of ONNX and of ONNX Runtime's packages
_KNOWN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc", "com.ms.dml")
#: operators that a sentence names
_NAMED = 4
_EXTENSIONS = ("ai.onnx.contrib", "com.microsoft.extensions")


def _check(subject: Subject) -> Iterator[Place]:
    provider = audited()[subject.provider]
    refused: dict[tuple[str, str | None], list[Missing]] = defaultdict(list)
    for missing in subject.missing_kernels:
        if missing.fate == "refused":
            refused[missing.dtype, missing.elsewhere].append(missing)
    for (dtype, elsewhere), every in refused.items():
        kinds = Counter(missing.node.op_type for missing in every).most_common()
        named = ", ".join(f"{operator} ({count} nodes)" for operator, count in kinds[:_NAMED])
        rest = f" and {len(kinds) - _NAMED} other operators" if len(kinds) > _NAMED else ""
        yield Place(
            f"{runtime(provider.ort_name)} has no kernel of {provider.label} for {named}{rest}"
            f"{f' in {dtype}' if dtype else ''}: the file does not load there"
            + (f"; {elsewhere} has one" if elsewhere is not None else ""),
            [missing.node for missing in every],
            severity=_severity(elsewhere, subject),
        )
    for domain in dict.fromkeys(node.domain for node in subject.nodes if node.domain not in _KNOWN):
        nodes = [node for node in subject.nodes if node.domain == domain]
        library = "onnxruntime-extensions" if domain in _EXTENSIONS else "a library of custom operators"
        yield Place(
            f"{', '.join(sorted({node.op_type for node in nodes}))} of domain {domain!r} need {library}, without which "
            "the file does not load",
            nodes,
            severity="warning",
        )


def _severity(elsewhere: str | None, subject: Subject) -> Severity:
    """A file for another provider is no fault; a bundle's target was asked for, which is not the audit's provider."""
    if elsewhere is None:
        return "error"
    return "note" if subject.by_posexport else "warning"


RULE = Rule(
    code="PX401",
    name="missing-kernel",
    severity="error",
    finds="an operator or element type that the provider has no kernel for",
    why="ONNX Runtime refuses the file when it is opened (NOT_IMPLEMENTED), on every machine with this provider.",
    remedy="Convert to a type that the provider computes (float32 or float16 for bfloat16 on the CPU), or export with "
    "operators that it has; posexport list providers says what each computes.",
    check=_check,
    reads="kernels",
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        refused (bfloat16[B, 4] x) => (bfloat16[B, 2] y)
        <float[4, 2] weight = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}>
        {
            narrow = Cast <to = 16> (weight)
            y = MatMul (x, narrow)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        loads (bfloat16[B, 4] x) => (bfloat16[B, 2] y)
        <float[4, 2] weight = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}>
        {
            wide = Cast <to = 1> (x)
            product = MatMul (wide, weight)
            y = Cast <to = 16> (product)
        }
    """,
)
