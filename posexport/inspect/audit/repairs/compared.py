"""Compares a repaired graph with the file that it was made from, by calls of both.

The file is right in a call if every row of the batch has the outputs that it has alone, without padding.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from posexport.base.options.commands import AuditOptions
from posexport.base.system.extras import is_installed
from posexport.base.targets.provider_options import bytes_of
from posexport.inspect.audit.calls.calls import Answer, Calls, is_real, real_places
from posexport.inspect.audit.calls.frames import Arrays
from posexport.inspect.audit.calls.inputs import Call, Side
from posexport.inspect.audit.calls.opened import opened
from posexport.inspect.audit.calls.ports import UnknownError
from posexport.inspect.audit.calls.process import Child, EndedError
from posexport.inspect.audit.repairs.position_guard import BEYOND
from posexport.inspect.audit.rules.unlike_calls import held_states
from posexport.inspect.audit.subject import Subject

#: batch sizes of the calls, and the largest batch and length of the example that are called
_BATCHES, _MOST_ROWS, _MOST_TOKENS = (1, 2, 3), 16, 1024

#: tokens in the cache and after the call, of calls behind a cache
_CUTS = ((4, 5), (4, 11))

#: the result of a call of both files; ``mixed``: padding changes rows in the repaired graph
_Kind = Literal["same", "new", "failing", "refused", "mixed"]
_SENTENCES: Mapping[_Kind, str] = {
    "new": "right in {} calls that the file fails in, or mixes rows or padding in",
    "failing": "fails in {} calls as the file does",
    "refused": "refused beyond a table in {} calls",
}


class NotProvenError(Exception):
    """Why a repaired graph must not be written, as a clause."""


def compared(before: Path, after: Path, numbers: Sequence[int], options: AuditOptions) -> list[str]:
    """Sentences on calls of both files on the CPU provider.

    Args:
        numbers: sizes of the example that the repairs replaced: the file is right there.
        options: limits of the calls.

    Raises:
        NotProvenError: the repaired file computes something else where the file was right, or no call is computed.
    """
    if not is_installed("onnxruntime"):
        raise NotProvenError("it could not be compared with the file: install onnxruntime")
    try:
        return _compared(before, after, numbers, options)
    except (UnknownError, EndedError) as err:
        raise NotProvenError(f"it could not be compared with the file: {err}") from err


def _compared(before: Path, after: Path, numbers: Sequence[int], options: AuditOptions) -> list[str]:
    options, source = AuditOptions(timeout=options.timeout, memory=options.memory), Subject(before)
    with (
        opened(Subject(after), options) as repaired,
        Child(before, source.provider, seconds=options.timeout, most=bytes_of(options.memory)) as child,
    ):
        original = Calls(source, repaired.inputs, child)
        sentences = list(_sentences(original, repaired, numbers))
        if behind := _behind_a_cache(original, repaired):
            sentences.append(f"the same outputs as the file in {behind} calls behind a cache")
        return sentences


def _sentences(original: Calls, repaired: Calls, numbers: Sequence[int]) -> Iterator[str]:
    calls: dict[_Kind, list[Call]] = {"same": [], "new": [], "failing": [], "refused": [], "mixed": []}
    for call in [*sized_calls(repaired, numbers), *padded_calls(repaired)]:
        calls[_kind(original, repaired, call, numbers)].append(call)
    yield f"the same outputs as the file in {len(calls['same'])} calls{_example(repaired, calls['same'])}"
    for kind, sentence in _SENTENCES.items():
        if calls[kind]:
            yield f"{sentence.format(len(calls[kind]))}{_example(repaired, calls[kind])}"


def _kind(original: Calls, repaired: Calls, call: Call, numbers: Sequence[int]) -> _Kind:
    """The result of a call; NotProvenError where the file is right and the repaired graph is not."""
    right, answer = original(call), repaired(call)
    if BEYOND in answer.failure:
        return "refused"
    if right and not _is_broadcast(call, right, answer, numbers) and _rows_agree(original, call):
        if not answer:
            raise NotProvenError(f"it fails at {call}, where the file does not: {answer.failure or answer.refusal}")
        _check(repaired, right.outputs, answer.outputs, call)
        return "same"
    if not answer:
        return "failing"
    if _rows_agree(repaired, call):
        return "new"
    # padding may be wrong in the file by another fault, or not be meant to be there, as on the left
    if is_padded(call):
        return "mixed"
    raise NotProvenError(
        f"its rows depend on each other at {call}: the file has another fault, see posexport audit --run"
    )


def _is_broadcast(call: Call, right: Answer, answer: Answer, numbers: Sequence[int]) -> bool:
    """Whether the file repeats what has one token or row as often as the example has them, in silence."""
    sizes = {number for number in numbers if number > 1}
    if sizes and min(tokens for _, tokens in call.rows) == 1:
        return True
    shapes = [(right.outputs[name].shape, y.shape) for name, y in answer.outputs.items()]
    return any(size in sizes and now == 1 for before, after in shapes for size, now in zip(before, after, strict=False))


def sized_calls(calls: Calls, numbers: Sequence[int]) -> list[Call]:
    """Batch sizes and lengths, with the sizes of the example."""
    batches = sorted({*_BATCHES, *(number for number in numbers if number <= _MOST_ROWS)})
    lengths = sorted({*calls.lengths, *(number for number in numbers if number <= _MOST_TOKENS)})
    batches_of_rows = [tuple((seed, length) for seed in range(1, batch + 1)) for batch in batches for length in lengths]
    if calls.inputs.has("tokens"):
        return [Call(rows) for rows in batches_of_rows]
    # pictures and maps of the example's size, and of the size at which one row is computed
    sizes = [(), *((("height", number), ("width", number)) for number in numbers if number <= _MOST_TOKENS)]
    return [Call(rows, sizes=size) for rows in batches_of_rows[:: len(lengths)] for size in sizes]


def _behind_a_cache(original: Calls, repaired: Calls) -> int:
    """How many calls that continue a cache of the file's were compared."""
    if not original.inputs.past or not original.inputs.has("tokens"):
        return 0
    count = 0
    for tokens, total in _CUTS:
        rows = ((1, total), (2, total))
        before = original(Call(tuple((seed, tokens) for seed, _ in rows)))
        held = held_states(original, before.outputs) if before else None
        call = Call(rows, start=tokens)
        if held is None or not (right := original.run({**original.inputs.feeds(call), **held})):
            continue
        answer = repaired.run({**original.inputs.feeds(call), **held})
        if not answer:
            raise NotProvenError(
                f"it fails behind a cache of {tokens} tokens, where the file does not: "
                f"{answer.failure or answer.refusal}"
            )
        _check(repaired, right.outputs, answer.outputs, replace(call, start=0))
        count += 1
    return count


def padded_calls(calls: Calls) -> list[Call]:
    """Batches with a shorter row, padded on either side, of a graph with a mask."""
    if calls.inputs.mask is None or not calls.inputs.has("tokens"):
        return []
    sides: tuple[Side, ...] = ("right", "left")
    return [
        Call(((1, length), (2, length - length // 3)), side=side)
        for side in sides
        for length in calls.lengths
        if length // 3
    ]


def is_padded(call: Call) -> bool:
    """Whether a row is shorter than the others."""
    return not call.real.all()


def _check(calls: Calls, right: Arrays, outputs: Arrays, call: Call) -> None:
    """Raises NotProvenError where two results differ by more than rounding at real tokens."""
    for name, expected in right.items():
        y = outputs[name]
        off = real_gap(calls, name, y, expected, call) if is_real(expected) and y.shape == expected.shape else None
        if y.shape != expected.shape or off is not None:
            raise NotProvenError(
                f"it has another {name!r} at {call}, where the file was right"
                f"{'' if off is None else f': off by {off:.1e} of the largest value'}"
            )


def real_gap(calls: Calls, name: str, y: NDArray[Any], expected: NDArray[Any], call: Call) -> float | None:
    """By how much two results differ; of a padded batch at the real tokens of every row."""
    if not is_padded(call) or len(y) != len(call.rows):
        return calls.gap(name, y, expected, [call])
    pairs = [
        (real_places(y[row : row + 1], call, tokens), real_places(expected[row : row + 1], call, tokens))
        for row, (_, tokens) in enumerate(call.rows)
    ]
    gaps = [gap for pair in pairs if (gap := calls.gap(name, *pair, [call])) is not None]
    return max(gaps, default=None)


def _rows_agree(calls: Calls, call: Call) -> bool:
    """Whether every row of a batch is what it is alone; if its rows alone fail, the batch counts as right."""
    batch = calls(call).outputs
    for row, (_, tokens) in enumerate(call.rows if len(call.rows) > 1 else ()):
        alone_call = replace(call, rows=call.rows[row : row + 1])
        for name, alone in calls(alone_call).outputs.items():
            y = batch.get(name)
            # an output without a batch axis is the same for all rows
            if y is None or not is_real(alone) or len(alone) != 1 or y.shape == alone.shape:
                continue
            y = real_places(y[row : row + 1], call, tokens) if len(y) == len(call.rows) else y
            if y.shape != alone.shape or calls.gap(name, y, alone, [alone_call]) is not None:
                return False
    return True


def _example(calls: Calls, called: Sequence[Call]) -> str:
    return f", such as {called[-1]}" if called and calls.inputs.has("tokens") else ""
