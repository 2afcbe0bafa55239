"""The definition, run by PyTorch: in float64 it is the truth, in the model's own precision it is the measure."""

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from posexport.errors import PosexportError
from posexport.parity.criterion import Array
from posexport.parity.grid.inputs import Feeds
from posexport.parity.last_call import Remembered
from posexport.parity.references.half_products import WideProducts
from posexport.parity.references.shared_weights import Reader, shareable, sharing
from posexport.sources import mapped
from posexport.torch_fixes.module_precision import in_precision

_T = TypeVar("_T")


class PrecisionCopy:
    """A copy of ``module`` in one precision. ``fresh``: every call gets its own, for modules that keep state.

    ``device``: PyTorch's name of where it computes.

    The copy of a large module, and any with ``share``, reads the original's parameters one at a time
    (`posexport.parity.references.shared_weights`).
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype,
        *,
        outputs: int,
        fresh: bool = False,
        device: str = "cpu",
        share: bool = False,
    ) -> None:
        self.original = module
        self.device = torch.device(device)
        self.dtype = dtype
        self.outputs = outputs
        shares = share or mapped.size_of(module.parameters()) > mapped.LARGE
        self.reader = Reader(dtype) if shares and shareable(module) and self.device.type == "cpu" else None
        self.copy = None if fresh else self._copied()

    def _copied(self) -> nn.Module:
        if self.reader is not None:
            module = sharing(self.original, self.reader)
        else:
            module = in_precision(copy.deepcopy(self.original), self.dtype).eval().to(self.device)
        for part in getattr(module, "reused", ()):
            # of a copy of posexport's own; hooks see a call and cannot spare it, and a module around the part would
            # not be the one that its definition asks for inputs and encodings
            part.forward = Remembered(part.forward)
        return module

    def __call__(self, feeds: Feeds) -> list[Array]:
        """The outputs as NumPy arrays (half precision widened to float32)."""
        outputs = self.asked(lambda module: module(**self.tensors(feeds)))
        if not isinstance(outputs, tuple) or len(outputs) != self.outputs:
            got = f"a tuple of {len(outputs)}" if isinstance(outputs, tuple) else type(outputs).__name__
            raise PosexportError(f"the module returned {got}; a tuple of {self.outputs} was declared by its outputs")
        return [_numpy(tensor) for tensor in outputs]

    def asked(self, call: Callable[[nn.Module], _T]) -> _T:
        """What ``call`` makes of the copy, computed as its outputs are."""
        module = self._copied() if self.copy is None else self.copy
        # what it makes without a device is there too; on the CPU it is anyway
        makes_there = nullcontext() if self.device.type == "cpu" else self.device
        with makes_there, torch.inference_mode(), _products(self.dtype):
            answer = call(module)
        if self.reader is not None:
            self.reader.release()
            mapped.trim()
        return answer

    def tensors(self, feeds: Feeds) -> dict[str, torch.Tensor]:
        """Feeds as tensors, real numbers in the copy's precision."""
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in feeds.items()}
        return {name: t.to(self.dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def fingerprint(outputs: Sequence[Array]) -> str:
    """Equal only for outputs that are equal in every bit."""
    digest = hashlib.sha256()
    for array in outputs:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """PyTorch on ``threads`` threads (0: as it is) inside the block."""
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads:
            torch.set_num_threads(before)


def _products(dtype: torch.dtype) -> AbstractContextManager[object]:
    """How products of matrices of ``dtype`` are computed."""
    return WideProducts() if dtype == torch.float16 else nullcontext()  # type: ignore[no-untyped-call]


def _numpy(tensor: torch.Tensor) -> Array:
    wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    array: Array = wide.detach().cpu().numpy()
    return array
