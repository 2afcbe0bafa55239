"""PX306: a state that calls do not hand on: constant, unchanged, or computed without the state before."""

import re
from collections.abc import Iterator

import onnx_ir as ir

from posexport.graph.dataflow import inputs
from posexport.graph.queries import SHAPES
from posexport.inspect.audit.analyses.roles import Roles
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.rules.constant_output import origin
from posexport.inspect.audit.subject import Subject

#: what names of the two differ by
_SIDES = re.compile(r"past_key_values?|present_key_values?|past|present|updated|new_|outputs?|inputs?|_(out|in)$|cache")


def _state_pairs(roles: Roles) -> list[tuple[ir.Value, ir.Value]]:
    """(past, present) of the same layer and kind by their names, without an encoder's, which stay."""
    past = {_key(value): value for value in roles.past if value not in roles.cross}
    present = {_key(value): value for value in roles.present}
    return [(value, present[key]) for key, value in past.items() if key in present]


def _key(value: ir.Value) -> str:
    return re.sub(r"[^a-z0-9]+", ".", _SIDES.sub("", (value.name or "").lower())).strip(".")


def _check(subject: Subject) -> Iterator[Place]:
    fed = {value for value in subject.graph.inputs if not value.is_initializer()}
    # outputs of counts and sizes are no states
    states = [value for value in subject.roles.present if value.dtype is None or value.dtype.is_floating_point()]
    constant = [value for value in states if fed.isdisjoint(inputs(value, breaks=SHAPES))]
    for value in constant:
        yield Place(f"state {value.name!r} has the same elements after every call: no input reaches them", _at(value))

    pairs = [(past, present) for past, present in _state_pairs(subject.roles) if present not in constant]
    copies = [(past, present) for past, present in pairs if origin(present) is past]
    for past, present in copies:
        # without layers in their names, the states of an encoder's tokens look as all others do, and stay as they are
        severity = None if len(copies) == len(pairs) else "warning"
        yield Place(
            f"state {present.name!r} is {past.name!r} unchanged: new tokens never reach it",
            _at(present),
            severity=severity,  # type: ignore[arg-type]
        )
    rest = [pair for pair in pairs if pair not in copies]
    without = [(past, present) for past, present in rest if past not in inputs(present, breaks=())]
    if len(without) < len(
        rest
    ):  # a graph that returns the new tokens' part of every state leaves the rest to its caller
        for past, present in without:
            yield Place(f"state {present.name!r} does not depend on {past.name!r}, the state before", _at(present))


def _at(value: ir.Value) -> list[ir.Node | str]:
    node = value.producer()
    return [node if node is not None else value.name or "?"]


RULE = Rule(
    code="PX306",
    name="dead-state",
    severity="error",
    finds="a KV cache or recurrent state that a call does not hand on",
    why="The first call is right; every later one computes as if the tokens before it had not been there. In-place "
    "writes to a cache are what exporters lose.",
    remedy="Return the updated state from forward as a new tensor (torch.cat, or index_put without in-place writes), "
    "and export again; posexport convert proves chains of calls.",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        dead (float[B, T, D] x, float[B, P, D] past_key) => (float[B, S, D] y, float[B, S, D] present_key)
        {
            y = Concat <axis = 1> (past_key, x)
            size = Shape (y)
            present_key = ConstantOfShape (size)
        }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        alive (float[B, T, D] x, float[B, P, D] past_key) => (float[B, S, D] y, float[B, S, D] present_key)
        {
            present_key = Concat <axis = 1> (past_key, x)
            y = Relu (present_key)
        }
    """,
)
