"""Where a module reads the values of its tensors, or makes a tensor whose shape depends on them."""

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.system.user_code import line_of_frame

#: what the user writes, for the operators that it comes to
_WRITTEN = {
    "aten::_local_scalar_dense": "`.item()`",
    "aten::nonzero": "a mask as index",
    "aten::masked_select": "`masked_select`",
    "aten::_unique2": "`unique`",
    "aten::unique_consecutive": "`unique_consecutive`",
}


class ValueReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records, while it is active, the operators that read values. ``found``: what is written, and its line."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().split(".")[0]
        written = _WRITTEN.get(name)
        if name == "aten::index" and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
            written = "a mask as index"
        if written is not None:
            line = line_of_frame(sys._getframe(1))  # noqa: SLF001 (inspect.stack reads files)
            found = f"{written}, {line}" if line else written
            if found not in self.found:
                self.found.append(found)
        return func(*args, **(kwargs or {}))
