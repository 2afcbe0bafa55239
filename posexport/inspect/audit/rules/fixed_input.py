"""PX406: token ids of one batch size or length."""

from collections.abc import Iterator

from posexport.base.targets.listed import audited
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    if audited()[subject.provider].sizes:  # they are wanted there
        return
    for value in subject.roles.ids:
        sizes = subject.sizes.of(value)
        if sizes is None or len(sizes) != 2 or value in subject.roles.positions or subject.by_posexport:
            continue
        # a graph of decode steps reads one token, the rest is in its cache
        sizes = (sizes[0], "1") if sizes[1] == 1 and subject.roles.is_decoder else sizes
        names = ("batch size", "length")
        fixed = [f"{name} {size}" for name, size in zip(names, sizes, strict=True) if isinstance(size, int)]
        readers = [user for user, _ in value.uses()]
        if fixed and readers:
            yield Place(f"{value.name!r} is declared with {' and '.join(fixed)}: every call has that", readers[:1])


RULE = Rule(
    code="PX406",
    name="fixed-input",
    severity="note",
    finds="token ids that are declared with one batch size or length",
    why="Texts are padded to the length, which costs as much as a text that has it, and longer ones are cut.",
    remedy="Export with dynamic axes, unless the provider needs fixed sizes (NPUs, CoreML).",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        fixed (int64[1, 17] input_ids) => (float[1, 17, 2] y)
        <float[3, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
        { y = Gather (table, input_ids) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        free (int64[B, T] input_ids) => (float[B, T, 2] y)
        <float[3, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>
        { y = Gather (table, input_ids) }
    """,
)
