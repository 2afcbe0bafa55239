"""Values that a module takes from 0 on alone, as counts of cells or levels of noise of which it takes a logarithm.

Names and types do not tell. The example does, where it has no negative value, and the module: with the example negated
its outputs are no numbers, or it raises an exception.
"""

from collections.abc import Mapping, Sequence

import msgspec
from torch import Tensor, nn

from posexport.base.spec import InputSpec
from posexport.errors import PosexportError
from posexport.modules.call import CallError, call
from posexport.modules.drawn_calls import DrawnCalls
from posexport.modules.left_out import has_values


def with_signs(
    argument: str, module: nn.Module, specs: Sequence[InputSpec], tensors: Mapping[str, Tensor]
) -> tuple[list[InputSpec], list[str]]:
    """``specs`` with the mark of values from 0 on, from calls with the example ``tensors``, and a remark on each."""
    unsigned = [spec.name for spec in specs if spec.role == "values" and not bool((tensors[spec.name] < 0).any())]
    calls = DrawnCalls(argument, module, list(specs)) if unsigned else None
    marked = [
        name
        for name in unsigned
        if calls is not None and not _gives_values(calls.module, {**tensors, name: -tensors[name]})
    ]
    if not marked or calls is None or not _gives_values(calls.module, tensors):  # another fault, which is told later
        return list(specs), []
    remarks = [
        f"values of {name} are drawn from 0 on, as in the example: with negative ones the outputs are no numbers, or "
        "the module fails"
        for name in marked
    ]
    return [msgspec.structs.replace(spec, positive=True) if spec.name in marked else spec for spec in specs], remarks


def _gives_values(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    try:
        return all(map(has_values, call(module, tensors).values()))
    except (CallError, PosexportError):
        return False
