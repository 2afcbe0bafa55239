"""PX408: opsets and versions of the file format that the installed ONNX Runtime does not open."""

from collections.abc import Iterator

from posexport.base.targets.kernels import installed_version
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: ONNX Runtime, and the newest opset and version of the file format that it opens (measured)
_OPENS = (("1.31", 26, 13), ("1.32", 28, 14))


def _check(subject: Subject) -> Iterator[Place]:
    opset, ir_version = subject.opset(), subject.model.ir_version
    fitting = [version for version, newest, format_ in _OPENS if opset <= newest and (ir_version or 0) <= format_]
    needed = fitting[0] if fitting else f"later than {_OPENS[-1][0]}"
    if needed == _OPENS[0][0]:
        return
    installed = installed_version()
    old = installed is not None and not any(_number(installed) >= _number(version) for version in fitting)
    yield Place(
        f"opset {opset} and IR version {ir_version} need ONNX Runtime {needed}"
        + (f", and {installed} is installed here" if old else ""),
        [node] if (node := next(iter(subject.nodes), None)) is not None else [],
        severity="error" if old else "note",
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


RULE = Rule(
    code="PX408",
    name="too-new",
    severity="error",
    finds="an opset or IR version that only the newest ONNX Runtime opens",
    why="Older ones refuse the file when it is opened, although every operator in it may be an old one.",
    remedy="Upgrade ONNX Runtime; or export at an older opset, or convert the file (onnx.version_converter), and save "
    "it with an older ir_version.",
    check=_check,
    bad="""
        <ir_version: 10, opset_import: ["": 28]>
        newer (float[B, 4] x) => (float[B, 4] y)
        { y = Relu (x) }
    """,
    good="""
        <ir_version: 10, opset_import: ["": 22]>
        older (float[B, 4] x) => (float[B, 4] y)
        { y = Relu (x) }
    """,
)
