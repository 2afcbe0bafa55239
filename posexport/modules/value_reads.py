"""What a user's module reads of the values of tensors, or draws at random, with the line: what no graph can."""

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posexport.base.system.user_code import line_of_frame

#: what the user writes, by the operators that PyTorch calls for it
_WRITTEN = {
    "aten::_local_scalar_dense": "`.item()`",
    "aten::nonzero": "a mask as index",
    "aten::masked_select": "`masked_select`",
    "aten::_unique2": "`unique`",
    "aten::unique_consecutive": "`unique_consecutive`",
}


class ValueReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators that read values, or make a shape of them: ``lines`` has what the user wrote, and where."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().split(".")[0]
        operation = _WRITTEN.get(name)
        if name == "aten::index" and any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
            operation = "a mask as index"
        if operation is not None:
            line = line_of_frame(sys._getframe(1))  # noqa: SLF001 (inspect.stack reads files)
            entry = f"{operation}, {line}" if line else operation
            if entry not in self.lines:
                self.lines.append(entry)
        return func(*args, **(kwargs or {}))


class RandomDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the user's ``lines`` that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[str] = []
        # callers are no part of the module, even where they are the user's script
        self._outside = sys._getframe(1)  # noqa: SLF001

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            line = line_of_frame(sys._getframe(1), self._outside)  # noqa: SLF001
            self.lines += [line] if line else []
        return func(*args, **(kwargs or {}))
