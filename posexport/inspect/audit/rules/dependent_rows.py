"""PX701: rows of a batch that depend on each other."""

from collections.abc import Iterator

from posexport.inspect.audit.calls.calls import ONE_SCALE, is_real
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    calls = subject.calls
    if calls is None or not calls.working:
        return
    length = calls.working[-1]
    for batch in (2, 3):
        several_rows = Call(tuple((row, length) for row in range(1, batch + 1)))
        several = calls(several_rows)
        for row in range(batch):
            alone_call = Call(several_rows.rows[row : row + 1])
            alone = calls(alone_call)
            for name, right in alone.outputs.items():
                y = several.outputs.get(name)
                # an output of both batches, of texts and pictures, has another shape
                if y is None or not is_real(right) or y.shape != (batch, *right.shape[1:]) or len(right) != 1:
                    continue
                off = calls.gap(name, y[row : row + 1], right, [alone_call])
                if off is not None:
                    yield _place(name, row, batch, off, calls.shares_scales)
                    return


def _place(name: str, row: int, batch: int, off: float, quantizing: bool) -> Place:
    said = f"row {row + 1} of a batch of {batch} has another {name!r} than the same row alone: off by {off:.1e}"
    if not quantizing:
        return Place(f"{said} of the largest value", [name])
    return Place(
        f"{said} of the largest value; {ONE_SCALE}",
        [name],
        severity="warning",
        remedy="Quantize activations by row or not at all (weights only), or run one row a call where results must "
        "not depend on what else is in the batch.",
    )


RULE = Rule(
    code="PX701",
    name="dependent-rows",
    severity="error",
    finds="a row of a batch has other outputs than the same row alone",
    why="Results depend on who else is in the batch: rows were joined by a Reshape, or share a scale or a mask.",
    remedy="Export again with a batch of 2 or more as the example, and compare a batch with its rows alone.",
    reads="calls",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        joined (float[B, T, 4] inputs_embeds) => (float[B, T, 4] y)
        <int64[1] rows = {0}>
        {
            sum = ReduceSum (inputs_embeds, rows)
            y = Add (inputs_embeds, sum)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        apart (float[B, T, 4] inputs_embeds) => (float[B, T, 4] y)
        <int64[1] tokens = {1}>
        {
            sum = ReduceSum (inputs_embeds, tokens)
            y = Add (inputs_embeds, sum)
        }
    """,
)
