"""How many ids an input takes: the rows of the table that looks them up; and which integers are no ids."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posexport.base.spec import InputSpec
from posexport.errors import PosexportError
from posexport.modules.axes.largest import CALL
from posexport.modules.call import CallError, call, calling
from posexport.modules.copied import copied
from posexport.modules.decoder_facts import small
from posexport.modules.left_out import has_values
from posexport.sources.torch_fixes.global_tables import with_tables_kept
from posexport.sources.torch_fixes.module_state import with_state_kept

#: integers from here on are accepted where no smaller one is refused; by how much each one that is tried is larger
_FAR, _STEP = 2**31 - 1, 8
#: the proof draws integers without a bound below this, as the steps of a diffusion
_PROVEN = 1000


class _Lookups(TorchFunctionMode):
    """Records the rows of the first table that each tensor of ids is looked up in.

    Lookups, not calls of nn.Embedding: a subclass for positions takes a shape, or makes other ids of its input.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[tuple[int, int], int] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Part of the protocol of PyTorch's function modes."""
        named = {**dict(zip(("input", "weight"), args, strict=False)), **(kwargs or {})}
        if func is F.embedding:
            self._rows.setdefault(_elements(named["input"]), len(named["weight"]))
        elif func is Tensor.__getitem__ and isinstance(args[0], nn.Parameter):
            # W_E[tokens] and W_E[tokens, :], as transformer-lens has them
            ids, *others = args[1] if isinstance(args[1], tuple) else (args[1],)
            if isinstance(ids, Tensor) and ids.dtype == torch.int64 and all(other == slice(None) for other in others):
                self._rows.setdefault(_elements(ids), len(args[0]))
        return func(*args, **(kwargs or {}))

    def rows_for(self, ids: Tensor) -> int | None:
        return self._rows.get(_elements(ids))


def _elements(tensor: Tensor) -> tuple[int, int]:
    """Equal for a tensor and a view of all its elements, as ``input_ids.view(-1, length)``."""
    return tensor.data_ptr(), tensor.numel()


def with_vocabularies(
    argument: str, module: nn.Module, specs: list[InputSpec], tensors: Mapping[str, Tensor]
) -> tuple[list[InputSpec], list[str]]:
    """Inputs of ids with the number of rows of the table that looks them up, from lookups or else from calls.

    The second result has a remark for every input whose values no table bounds, or only the example's largest id.
    """
    lookups = _Lookups()
    if tensors:
        with calling(), with_state_kept(module), with_tables_kept(module), lookups:
            module(**tensors)
    known, remarks = [], []
    for spec in specs:
        rows = lookups.rows_for(tensors[spec.name]) if spec.name in tensors else None
        if rows is None and spec.role == "tokens" and spec.name in tensors:
            spec, remark = _by_calls(argument, module, spec, tensors)
            remarks.append(remark)
        known.append(spec if rows is None else msgspec.structs.replace(spec, size=rows))
    return known, [remark for remark in remarks if remark]


def _by_calls(
    argument: str, module: nn.Module, spec: InputSpec, tensors: Mapping[str, Tensor]
) -> tuple[InputSpec, str]:
    """An input of ids with the bound that calls with larger values show, and a remark.

    ``self.table[ids]`` raises beyond its rows; integers that are cast to real numbers, or taken modulo, have no bound.
    """
    tried = copied(argument, module) if small(module) else module
    largest = (spec.size or 1) - 1
    expected = _shapes(tried, tensors)

    def accepts(value: int) -> bool:
        larger = tensors[spec.name].clamp(min=value)
        return _shapes(tried, {**tensors, spec.name: larger}) == expected

    bound = _bound(accepts, largest)
    if bound is None:
        size = max(spec.size or 1, _PROVEN)
        remark = (
            f"input {spec.name}: all integers from 0 on are taken, as the module refuses no larger ones; the proof "
            f"draws them below {size}"
        )
        return msgspec.structs.replace(spec, role="numbers", size=size, column_sizes=[]), remark
    if spec.column_sizes or bound == largest:
        remark = f"input {spec.name}: ids from 0 to {largest} are taken, as the example has; give the largest there"
        return spec, remark
    return msgspec.structs.replace(spec, size=bound + 1), ""


def _shapes(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]] | None:
    """The shapes of the outputs; None where the module raises an exception, or gives NaN or infinity."""
    try:
        with with_state_kept(module):
            outputs = call(module, tensors)
    except (CallError, PosexportError, MemoryError):
        return None
    return {n: tuple(t.shape) for n, t in outputs.items()} if all(map(has_values, outputs.values())) else None


def _bound(accepts: Callable[[int], bool], low: int) -> int | None:
    """The largest value that is accepted, None where there is none; ``low`` is accepted."""
    high = low
    while high < max(_FAR, low):
        high = min(_STEP * (high + 1), _FAR)
        began = time.monotonic()
        if not accepts(high):
            break
        low = high
        if time.monotonic() - began > CALL:  # it counts up to the value
            return low
    else:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low
