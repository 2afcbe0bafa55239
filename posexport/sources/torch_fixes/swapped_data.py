"""``weight.data`` in a forward pass, which may set it, and set it back after a layer was called.

A trace makes constants of such tensors, which are none: "We found a fake tensor in the exported program constant's
list", or the process ends. Inside the block ``data`` is what ``detach()`` returns, an assignment is noted instead, and
every function gets the value that was assigned.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_GET, _SET = Tensor.data.__get__, Tensor.data.__set__  # type: ignore[attr-defined]


class SwappedData(TorchFunctionMode):
    """Inside the block ``tensor.data = value`` leaves ``tensor`` as it is, and functions get ``value`` for it."""

    def __init__(self) -> None:
        super().__init__()
        #: the tensors themselves too, so that no other one gets the id
        self._values: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Part of the protocol of PyTorch's function modes."""
        del types
        if func == _SET:
            tensor, value = args
            self._values[id(tensor)] = tensor, self._value(value)
            return None
        if func == _GET:
            return self._value(args[0]).detach()
        if self._values:
            args, kwargs = tree_map_only(Tensor, self._value, (tuple(args), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def _value(self, tensor: Tensor) -> Tensor:
        return self._values.get(id(tensor), (tensor, tensor))[1]
