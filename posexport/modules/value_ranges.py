"""Values that a module takes from 0 on alone, as counts of cells or levels of noise of which it takes a logarithm.

Names and types do not tell. The example does, where it has no negative value, and the module: with the example negated
its outputs are no numbers, or it raises an exception. It does so too with values above the example's where they have an
end, as pixels from 0 to 1. In a table [batch, columns] of real numbers, columns of whole ones may be ids.
"""

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import InputSpec
from posexport.errors import PosexportError
from posexport.modules.call import CallError, call
from posexport.modules.drawn_calls import DrawnCalls
from posexport.modules.left_out import has_values

#: how many times the example's values are tried
_LARGER = 8
#: the rank of a table
_OF_TABLES = 2


def with_ranges(
    argument: str, module: nn.Module, specs: Sequence[InputSpec], tensors: Mapping[str, Tensor]
) -> tuple[list[InputSpec], list[str]]:
    """``specs`` with ranges of values and ids in columns, from calls with the example ``tensors``; a remark on each."""
    if columns := _ids_in_columns(argument, module, specs, tensors):
        names = ", ".join(columns)
        remark = f"columns of whole numbers in {names} are taken for ids, at most those of the example: others fail"
        in_columns = [
            msgspec.structs.replace(spec, column_sizes=columns.get(spec.name, spec.column_sizes)) for spec in specs
        ]
        with_least, remarks = _with_least(argument, module, in_columns, tensors)
        return with_least, [remark, *remarks]
    specs, on_least = _with_least(argument, module, specs, tensors)
    unsigned = [spec.name for spec in specs if spec.role == "values" and not bool((tensors[spec.name] < 0).any())]
    calls = DrawnCalls(argument, module, list(specs)) if unsigned else None
    marked = [
        name
        for name in unsigned
        if calls is not None and not _gives_values(calls.module, {**tensors, name: -tensors[name]})
    ]
    if not marked or calls is None or not _gives_values(calls.module, tensors):  # another fault, which is told later
        return list(specs), on_least
    most = {
        name: float(tensors[name].max())
        for name in marked
        if not _gives_values(calls.module, {**tensors, name: _LARGER * tensors[name]})
    }
    remarks = [
        f"values of {name} are drawn from 0 {f'to {most[name]:.4g}' if name in most else 'on'}, as in the example: "
        f"with negative {'and larger ' if name in most else ''}ones the outputs are no numbers, or the module fails"
        for name in marked
    ]
    found = {name: {"positive": True} | ({"at_most": most[name]} if name in most else {}) for name in marked}
    return [msgspec.structs.replace(spec, **found.get(spec.name, {})) for spec in specs], [*on_least, *remarks]


def _with_least(
    argument: str, module: nn.Module, specs: Sequence[InputSpec], tensors: Mapping[str, Tensor]
) -> tuple[list[InputSpec], list[str]]:
    """``specs`` with the example's smallest ids where the module fails with 0, as ``table(ids - 1)`` does."""
    least = dict[str, int]()
    for spec in specs:
        ids = tensors[spec.name][..., torch.tensor(spec.column_sizes) > 0] if spec.column_sizes else tensors[spec.name]
        if (spec.role == "tokens" or spec.column_sizes) and (smallest := int(ids.min())) > 0:
            zero = {spec.name: tensors[spec.name].where(tensors[spec.name] != smallest, 0)}
            tried = DrawnCalls(argument, module, list(specs)).module
            if not _gives_values(tried, {**tensors, **zero}) and _gives_values(tried, tensors):
                least[spec.name] = smallest
    remarks = [f"ids of {name} are from {smallest} on, as in the example: 0 fails" for name, smallest in least.items()]
    found = {name: {"least": smallest} for name, smallest in least.items()}
    return [msgspec.structs.replace(spec, **found.get(spec.name, {})) for spec in specs], remarks


def _ids_in_columns(
    argument: str, module: nn.Module, specs: Sequence[InputSpec], tensors: Mapping[str, Tensor]
) -> dict[str, list[int]]:
    """By input how many ids each column has, 0 for real numbers; empty where the module takes other values too."""
    found = dict[str, list[int]]()
    for spec in specs:
        tensor = tensors[spec.name]
        if spec.role != "values" or tensor.dim() != _OF_TABLES or not isinstance(spec.axes[1], int):
            continue
        whole = ((tensor == tensor.floor()) & (tensor >= 0)).all(0)
        if bool(whole.any()) and len(tensor) > 1:
            found[spec.name] = [int(most) + 1 if ids else 0 for most, ids in zip(tensor.amax(0), whole, strict=True)]
    if not found:
        return {}
    calls = DrawnCalls(argument, module, list(specs))
    others = [{name: factor * tensors[name] for name in found} for factor in (1, -1, _LARGER)]
    as_given, *scaled = (_gives_values(calls.module, {**tensors, **other}) for other in others)
    return found if as_given and not all(scaled) else {}


def _gives_values(module: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    try:
        return all(map(has_values, call(module, tensors).values()))
    except (CallError, PosexportError):
        return False
