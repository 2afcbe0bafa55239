"""Pairs of a state before and after a call: keys, values and recurrent states."""

import re

import onnx_ir as ir

from posexport.inspect.audit.analyses.roles import Roles

#: what names of the two differ by
_SIDES = re.compile(r"past_key_values?|present_key_values?|past|present|updated|new_|outputs?|inputs?|_(out|in)$|cache")


def state_pairs(roles: Roles) -> list[tuple[ir.Value, ir.Value]]:
    """(past, present) of the same layer and kind by their names, without an encoder's, which stay."""
    past = {_key(value): value for value in roles.past if value not in roles.cross}
    present = {_key(value): value for value in roles.present}
    return [(value, present[key]) for key, value in past.items() if key in present]


def _key(value: ir.Value) -> str:
    return re.sub(r"[^a-z0-9]+", ".", _SIDES.sub("", (value.name or "").lower())).strip(".")
