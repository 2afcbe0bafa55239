"""PX703: sizes that fail although their axis is declared dynamic."""

from collections.abc import Iterator

from posexport.inspect.audit.calls.calls import Calls, failing
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject
from posexport.proof.foreign.runner import own_words

#: lengths of sound that are tried beyond the one that all calls have
_SAMPLES = (1237, 2501, 32033)


def _check(subject: Subject) -> Iterator[Place]:
    calls = subject.calls
    if calls is None or not calls.working:
        return
    yield from _lengths(calls)
    yield from _sounds(calls)
    length = calls.working[-1]
    for batch in (2, 3):
        answer = calls(Call(tuple((row, length) for row in range(1, batch + 1))))
        if answer.failure and calls.inputs.has("batch"):
            yield _place(f"a batch of {batch}", "a batch of 1", answer.failure)
            return


def _lengths(calls: Calls) -> Iterator[Place]:
    """The first length that fails, where another one works."""
    if not (calls.inputs.has("tokens") or calls.inputs.has("total")):
        return
    working = calls.working
    for length in calls.lengths:
        answer = calls(Call(((1, length),)))
        # beyond the end of a table is PX201's matter, and an honest limit
        if not answer.failure or ("out of data bounds" in answer.failure and length > max(working)):
            continue
        yield _place(f"length {length}", f"length {working[-1]}", answer.failure)
        return


def _sounds(calls: Calls) -> Iterator[Place]:
    """Sound that is longer than what was chosen because it works: at its length of one frame much fits."""
    chosen = calls.inputs.sizes["samples"]
    longer = next((samples for samples in _SAMPLES if samples > chosen), None)
    if longer is None or not calls.inputs.has("samples"):
        return
    answer = calls(Call(((1, calls.working[-1]),), sizes=(("samples", longer),)))
    # beyond the end of a table is PX201's matter, and a lack of memory is the machine's
    if answer.failure and not any(words in answer.failure for words in ("out of data bounds", "memory")):
        yield _place(f"sound of {longer} samples", f"sound of {chosen}", answer.failure)


def _place(size: str, right: str, failure: str) -> Place:
    return Place(f"{size} fails, {right} does not, and both are declared: {own_words(failure)}", failing(failure))


RULE = Rule(
    code="PX703",
    name="failing-size",
    severity="error",
    finds="a length or batch fails although the axis is declared dynamic, and another one works",
    why="The size of the example stayed in the graph: users find out with the first input of another size.",
    remedy="Export again with dynamic axes and sizes that occur nowhere else in the model as the example; posexport "
    "audit names the constant where a rule of group 1 finds it.",
    reads="calls",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        fixed (float[B, T, 2] inputs_embeds) => (float[B, T, 2] y)
        <int64[2] sizes = {0, 5}, int64[1] last = {-1}, float[5, 2] positions = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0,
         9.0, 10.0}>
        { y = Add (inputs_embeds, positions) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        free (float[B, T, 2] inputs_embeds) => (float[B, T, 2] y)
        <float[2] bias = {1.0, 2.0}>
        { y = Add (inputs_embeds, bias) }
    """,
)
