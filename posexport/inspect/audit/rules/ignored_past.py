"""PX202: positions of new tokens that start at 0 behind a KV cache."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.dataflow import sources
from posexport.inspect.audit.rule import Place, Rule, name_of
from posexport.inspect.audit.subject import Subject

#: operators that turn positions into something: angles, rows of a table
_READERS = ("Cos", "Sin", "Gather", "RotaryEmbedding")


def _check(subject: Subject) -> Iterator[Place]:
    roles = subject.roles
    past = [value for value in roles.past if value not in roles.cross]
    if not past:
        return
    counted = {*past, *roles.masks, *roles.positions}
    counted |= {value for value in subject.graph.inputs if "length" in (value.name or "").lower()}
    # the branch of a merged decoder that has no past starts at 0 rightly
    with_past = {user.graph for value in past for user, _ in value.uses()}
    for node in subject.nodes:
        positions = _positions(node)
        if positions is None or (node.graph is not subject.graph and node.graph not in with_past):
            continue
        # sizes count: the length of the cache is one
        reached = set(sources(positions, breaks=()))
        ranges = [step for value in reached if (step := value.producer()) is not None and step.op_type == "Range"]
        if ranges and reached.isdisjoint(counted):
            yield Place(
                f"{name_of(node)!r} reads positions that start at 0 in every call: neither the length of the cache "
                "nor a mask nor position ids reach them",
                [node, *ranges[:1]],
            )


def _positions(node: ir.Node) -> ir.Value | None:
    """The positions that a node reads; None if it is no reader of positions."""
    if node.op_type not in _READERS or (node.domain and node.op_type != "RotaryEmbedding"):
        return None
    if node.op_type == "Gather" and (node.inputs[0] is None or ir.convenience.get_const_tensor(node.inputs[0]) is None):
        return None
    return node.inputs[1] if node.op_type in ("Gather", "RotaryEmbedding") else node.inputs[0]


RULE = Rule(
    code="PX202",
    name="ignored-past",
    severity="error",
    finds="positions of a decoder's new tokens do not count the tokens in its cache",
    why="The prompt is right; from the second call on, every new token has position 0 again and the text degrades.",
    remedy="Pass position_ids (or cache_position) to the model when it is exported, and add the cache's length to a "
    "range; posexport convert does, and proves every way to cut a sequence into calls.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        restarts (float[B, H, T, D] q, float[B, H, P, D] past_key) => (float[T] angles)
        <int64 zero = {0}, int64 one = {1}>
        {
            length = Shape <start = 2, end = 3> (q)
            end = Squeeze (length)
            positions = Range (zero, end, one)
            x = Cast <to = 1> (positions)
            angles = Cos (x)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        goes_on (float[B, H, T, D] q, float[B, H, P, D] past_key) => (float[T] angles)
        <int64 one = {1}>
        {
            length = Shape <start = 2, end = 3> (q)
            before = Shape <start = 2, end = 3> (past_key)
            start = Squeeze (before)
            new = Squeeze (length)
            end = Add (start, new)
            positions = Range (start, end, one)
            x = Cast <to = 1> (positions)
            angles = Cos (x)
        }
    """,
)
