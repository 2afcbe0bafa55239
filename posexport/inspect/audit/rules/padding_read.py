"""PX702: outputs at real tokens that padding changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from posexport.graph.dataflow import sources
from posexport.inspect.audit.analyses.positions import lookups
from posexport.inspect.audit.calls.calls import ONE_SCALE, Calls, is_real, real_places
from posexport.inspect.audit.calls.inputs import Call, Side
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: places of padding that are added
_PADS = 6


def _check(subject: Subject) -> Iterator[Place]:
    calls = subject.calls
    if calls is None or calls.inputs.mask is None or not calls.working:
        return
    kinds = _outputs(calls)
    sides: tuple[Side, ...] = ("right", "left") if _counts(subject) else ("right",)
    for side in sides:
        place = next(_places(calls, side, kinds), None)
        if place is not None:
            yield place


def _places(calls: Calls, side: Side, kinds: Mapping[str, str]) -> Iterator[Place]:
    """Every difference on one side: other ids at padded places, then against the row without padding."""
    for length in calls.working:
        fixed = calls.lengths == [length]  # rows are padded to it
        tokens, width = (max(1, length // 2), length) if fixed else (length, length + _PADS)
        padded = Call(((1, tokens),), width, side)
        # what starts or ends at the edge reads one padded place by convention: the first token, or the last
        edges = {name for name, kind in kinds.items() if kind == "row" and _differ(calls, name, padded, edge=3)}
        # nor is one padding id known where the graph looks for the end of a text
        if side == "left" or any(port.is_read for port in calls.inputs.of_kind("ids")):
            edges |= {name for name, kind in kinds.items() if kind == "row"}
        compared = [name for name in kinds if name not in edges]
        for seed in (1, 2):
            changed = replace(padded, padding=seed)
            yield from _compared(calls, compared, changed, padded, f"other ids at padded places on the {side} change")
        if not fixed:
            alone = Call(((1, tokens),))
            yield from _compared(calls, compared, padded, alone, f"{_PADS} padded places on the {side} change")


def _differ(calls: Calls, name: str, call: Call, *, edge: int) -> bool:
    """Whether an output depends on the padded place at the edge."""
    one, other = calls(call), calls(replace(call, edge=edge))
    return bool(one and other) and calls.gap(name, other.outputs[name], one.outputs[name], [call]) is not None


def _compared(calls: Calls, names: Sequence[str], call: Call, other: Call, said: str) -> Iterator[Place]:
    """Outputs that differ at real tokens."""
    padded, right = calls(call), calls(other)
    if not (padded and right):
        return  # too long, or a size that fails
    tokens = call.rows[0][1]
    for name in names:
        y, expected = real_places(padded.outputs[name], call, tokens), real_places(right.outputs[name], other, tokens)
        if y.shape != expected.shape or not expected.size:
            continue
        off = calls.gap(name, y, expected, [other])
        if off is not None:
            reason = f"; {ONE_SCALE}" if calls.shares_scales else ""
            yield Place(
                f"{said} {name!r} of a row of {tokens} tokens, though the mask drops them: off by {off:.1e} of the "
                f"largest value{reason}",
                [name],
                "warning" if calls.shares_scales else None,
            )


def _outputs(calls: Calls) -> Mapping[str, str]:
    """Outputs that are compared: ``tokens`` if an axis has a place for each token, ``row`` if no size depends on it.

    Others have a place for several tokens, which may all be padding or not.
    """
    lengths = calls.working[:: len(calls.working) - 1 or 1]
    answers = [calls(Call(((1, length),))).outputs for length in lengths]
    kinds = {}
    for name, y in answers[0].items():
        last = answers[-1].get(name)
        if last is None or not is_real(y) or y.ndim != last.ndim:
            continue
        varying = [(a, b) for a, b in zip(y.shape, last.shape, strict=True) if a != b]
        if all(sizes == (lengths[0], lengths[-1]) for sizes in varying):
            by_token = bool(varying) or (len(lengths) == 1 and lengths[0] in y.shape[1:])
            kinds[name] = "tokens" if by_token else "row"
    return kinds


def _counts(subject: Subject) -> bool:
    """Whether padding on the left is meant to work: positions are an input or counted from the mask; decoders."""
    if subject.roles.positions or subject.roles.is_decoder:
        return True
    counted = [look for look in lookups(subject.nodes, subject.roles, subject.sizes) if look.origin == "count"]
    masks = set(subject.roles.masks)
    return any(masks & set(sources(index)) for look in counted if (index := look.node.inputs[1]) is not None)


RULE = Rule(
    code="PX702",
    name="padding-read",
    severity="error",
    finds="padded places change outputs at real tokens, though the mask drops them",
    why="A text has other results when it is in a batch with a longer one, and no error says so.",
    remedy="Use the mask in every layer that reads along the sequence (attention, pooling, convolutions, states), and "
    "count positions from it; until then run rows of one length in a batch.",
    reads="calls",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        read (int64[B, T] input_ids, int64[B, T] attention_mask) => (float[B, T, 2] y)
        <float[20, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
         17.0, 18.0, 19.0, 20.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
         17.0, 18.0, 19.0, 20.0, 21.0}, int64[1] tokens = {1}>
        {
            e = Gather (table, input_ids)
            mean = ReduceMean (e, tokens)
            y = Add (e, mean)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        dropped (int64[B, T] input_ids, int64[B, T] attention_mask) => (float[B, T, 2] y)
        <float[20, 2] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
         17.0, 18.0, 19.0, 20.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
         17.0, 18.0, 19.0, 20.0, 21.0}, int64[1] tokens = {1}, int64[1] last = {-1}>
        {
            e = Gather (table, input_ids)
            m = Cast <to = 1> (attention_mask)
            m3 = Unsqueeze (m, last)
            real = Mul (e, m3)
            sum = ReduceSum (real, tokens)
            y = Add (e, sum)
        }
    """,
)
