"""How many ids an input takes: the rows of the table that looks them up."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posexport.modules.call import calling
from posexport.spec import InputSpec
from posexport.torch_fixes.module_state import with_state_kept


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
    module: nn.Module, specs: list[InputSpec], tensors: Mapping[str, Tensor]
) -> tuple[list[InputSpec], list[str]]:
    """Inputs of ids with the number of rows of the table that looks them up, where one reads them unchanged.

    The second result has a remark for every input that only the example's largest id bounds.
    """
    lookups = _Lookups()
    if tensors:
        with calling(), with_state_kept(module), lookups:
            module(**tensors)
    rows = {name: count for name, ids in tensors.items() if (count := lookups.rows_for(ids)) is not None}
    known = [msgspec.structs.replace(spec, size=rows.get(spec.name, spec.size)) for spec in specs]
    bounded = [
        f"input {spec.name}: ids from 0 to {(spec.size or 1) - 1} are taken, as the example has; give the largest there"
        for spec in specs
        if spec.role == "tokens" and spec.name in tensors and spec.name not in rows
    ]
    return known, bounded
