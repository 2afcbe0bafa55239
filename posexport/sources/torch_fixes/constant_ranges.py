"""``torch.arange(1, x.dim()).tolist()`` in a trace: the numbers are known, and PyTorch's tracer makes symbols of them.

Issue: none known. Seen in 2.13.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode

from posexport.sources.torch_fixes.patch import patched
from posexport.sources.torch_fixes.whole_row import listed_of

#: elements of a tensor of numbers that the tracer remembers; PyTorch's limit is one
_KNOWN = 64


class _Ranges(TorchFunctionMode):
    """Notes the numbers of each range, and its version: an operation in place makes another."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[tuple[Tensor, int, range]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.arange and not kwargs and all(type(arg) is int for arg in args):
            self.known.append((result, result._version, range(*args)))  # noqa: SLF001
        return result


@contextmanager
def with_constant_ranges() -> Iterator[None]:
    """Inside the block ``tolist`` of a range of numbers is a list of numbers, and of lengths a list of sizes."""
    listed, ranges = FakeTensor.tolist, _Ranges()

    def numbers(self: FakeTensor) -> Any:
        for tensor, version, known in ranges.known:
            if tensor is self and version == self._version:
                return list(known)
        lengths = listed_of(self)
        return listed(self) if lengths is None else lengths

    limits = (patched(module, "CONSTANT_NUMEL_LIMIT", _KNOWN) for module in (fake_tensor, proxy_tensor))
    with patched(FakeTensor, "tolist", numbers), next(limits), next(limits), ranges:
        yield
