"""PX704: a sequence in one call and in two, with a cache between them, that have other outputs."""

import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from posexport.inspect.audit.calls.calls import ONE_SCALE, Calls, failing, is_real
from posexport.inspect.audit.calls.frames import Arrays
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.calls.ports import Port
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject
from posexport.proof.foreign.runner import own_words

#: (tokens of the first call, of both)
_CUTS = ((4, 11), (10, 11), (1, 5), (2, 4))
_WORDS = re.compile(r"past_key_values?|present_key_values?|past|present|updated|new|cache_params|cache|in|out|states?")

_PRESENT = re.compile("present|cache|updated|new|out|past")


def _check(subject: Subject) -> Iterator[Place]:
    calls = subject.calls
    if calls is None or not calls.working or not calls.inputs.past:
        return
    if not calls.inputs.has("tokens"):  # a graph of single steps has no call that reads a whole sequence
        return
    for first, total in _CUTS:
        place = next(_cut(calls, first, total), None)
        if place is not None:
            yield place
            return


def _cut(calls: Calls, first: int, total: int) -> Iterator[Place]:
    """Differences of the tokens after ``first``: read in one call, and with a cache."""
    whole, before = calls(Call(((1, total),))), calls(Call(((1, first),)))
    held = held_states(calls, before.outputs) if whole and before else None
    if held is None:
        return
    behind = calls.run({**calls.inputs.feeds(Call(((1, total),), start=first)), **held})
    if behind.failure:
        yield Place(
            f"{total - first} tokens behind a cache of {first} fail, {total} tokens in one call do not: "
            f"{own_words(behind.failure)}",
            failing(behind.failure),
        )
    for name, right in whole.outputs.items():
        y = behind.outputs.get(name)
        if y is None or not is_real(right) or y.ndim != right.ndim:
            continue
        y, right = _new(y, right, first, total)
        if y.shape != right.shape:
            continue
        off = calls.gap(name, y, right, [Call(((1, total),)), Call(((1, first),))])
        if off is not None:
            reason = f"; {ONE_SCALE}" if calls.shares_scales else ""
            yield Place(
                f"{name!r} of {total - first} tokens behind a cache of {first} is not that of {total} tokens in one "
                f"call: off by {off:.1e} of the largest value{reason}",
                [name],
                "warning" if calls.shares_scales else None,
            )


def held_states(calls: Calls, outputs: Arrays) -> Arrays | None:
    """The caches and states of a call as inputs of the next one; None where outputs and inputs do not pair."""
    present = presents(calls.inputs.past, list(outputs))
    if present is None:
        return None
    held = {name: outputs[output] for name, output in present.items()}
    if any(held[port.name].ndim != len(port.axes) for port in calls.inputs.past):
        return None
    # keys of an encoder's tokens, where one graph computes them in the first call and reads them later
    computed = {_bare(name): y for name, y in outputs.items() if _PRESENT.search(name.lower()) and y.size}
    crossed = [port.name for port in calls.inputs.of_kind("past") if port.name not in held]
    return held | {name: computed[_bare(name)] for name in crossed if _bare(name) in computed}


def _new(
    y: NDArray[np.generic], right: NDArray[np.generic], first: int, total: int
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Both results of the tokens after ``first``: one has all tokens where the other has new ones only."""
    for axis, (new, whole) in enumerate(zip(y.shape, right.shape, strict=True)):
        if axis and new == total - first and whole == total:
            right = np.take(right, range(first, total), axis=axis)
    return y, right


def presents(past: list[Port], outputs: list[str]) -> Mapping[str, str] | None:
    """The output that continues each cache: by name without words of time, else by order; None if they do not pair."""
    named = {_bare(name): name for name in outputs if _PRESENT.search(name.lower())}
    by_name = {port.name: named[_bare(port.name)] for port in past if _bare(port.name) in named}
    if len(by_name) == len(past) and len(set(by_name.values())) == len(past):
        return by_name
    rest = [name for name in outputs if re.search("present|updated|new_|_out", name.lower())]
    return dict(zip([port.name for port in past], rest, strict=True)) if len(rest) == len(past) else None


def _bare(name: str) -> str:
    """A name of a cache without what tells the one before a call from the one after it."""
    return ".".join(part for part in re.split(r"[._]", _WORDS.sub("", name.lower())) if part)


RULE = Rule(
    code="PX704",
    name="unlike-calls",
    severity="error",
    finds="tokens behind a cache have other outputs than the same tokens in one call",
    why="The prompt is right and every generated token is not: positions, mask or cache are wrong from the second call "
    "on.",
    remedy="Compare one call with prompt and steps after the export (posexport convert proves every way to cut a "
    "sequence); check positions and mask of the step first.",
    reads="calls",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        forgets (float[B, N, 2] inputs_embeds, float[B, P, 2] past_key)
            => (float[B, N, 2] y, float[B, S, 2] present_key)
        <int64 one = {1}>
        {
            present_key = Concat <axis = 1> (past_key, inputs_embeds)
            y = CumSum (inputs_embeds, one)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        reads (float[B, N, 2] inputs_embeds, float[B, P, 2] past_key)
            => (float[B, N, 2] y, float[B, S, 2] present_key)
        <int64 one = {1}, int64[1] tokens = {1}>
        {
            present_key = Concat <axis = 1> (past_key, inputs_embeds)
            sums = CumSum (present_key, one)
            from = Shape <start = 1, end = 2> (past_key)
            to = Shape <start = 1, end = 2> (present_key)
            y = Slice (sums, from, to, tokens)
        }
    """,
)
