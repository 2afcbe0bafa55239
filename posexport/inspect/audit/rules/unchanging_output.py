"""PX705: outputs that are the same for all inputs, and outputs that are no numbers."""

from collections.abc import Iterator

import numpy as np

from posexport.inspect.audit.calls.calls import is_real
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    calls = subject.calls
    if calls is None or not calls.working:
        return
    yield from _constant(subject)
    for length in calls.working:
        for batch in (1, 3):
            call = Call(tuple((row, length) for row in range(1, batch + 1)))
            for name, y in calls(call).outputs.items():
                if not is_real(y):
                    continue
                # minus infinity is how logits leave out a choice
                wrong = np.isnan(y) | np.isposinf(y)
                if wrong.any() or np.isneginf(y).all():
                    kind = "not a number" if np.isnan(y).any() else "infinite"
                    share = f"{100 * wrong.mean():.3g} % of" if wrong.any() else "all of"
                    yield Place(f"{share} {name!r} is {kind} for {call} without padding", [name])
                    return


def _constant(subject: Subject) -> Iterator[Place]:
    """Outputs with one value for all contents of one size; of all outputs, or of one with an axis of the batch."""
    calls = subject.calls
    assert calls is not None
    length = calls.working[-1]
    several = [calls(Call(((seed, length),))).outputs for seed in (1, 2, 3)]
    real = [name for name, y in several[0].items() if is_real(y)]
    same = [name for name in real if all(np.array_equal(other[name], several[0][name]) for other in several[1:])]
    if real and same == real:
        names = ", ".join(map(repr, real[:3]))
        yield Place(f"{names} have the same values for three different inputs", real[:3])


RULE = Rule(
    code="PX705",
    name="unchanging-output",
    severity="error",
    finds="outputs are the same for different inputs, or are infinite or not a number",
    why="An input is not connected, or a value overflows: the file loads, runs, and says nothing about its input.",
    remedy="Look at what the named output is computed from; export in float32 where a half overflows.",
    reads="calls",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        unconnected (float[B, T, 2] inputs_embeds) => (float[B, T, 2] y)
        <float zero = {0.0}>
        { y = Mul (inputs_embeds, zero) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        connected (float[B, T, 2] inputs_embeds) => (float[B, T, 2] y)
        <float two = {2.0}>
        { y = Mul (inputs_embeds, two) }
    """,
)
