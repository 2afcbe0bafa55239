"""Casts to a subclass of ``torch.Tensor`` are left out of a trace: a traced tensor has a class of the tracer's.

fastai's layers cast images so, torchvision's ``tv_tensors`` too. Where a subclass computes something else than
``torch.Tensor``, the proof shows it: the module is called as its author wrote it.

Issue: none is known. Seen in 2.13.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from posexport.sources.torch_fixes.patch import patched


def _same(x: Tensor, *_: Any) -> Tensor:
    return x


@contextmanager
def without_subclasses() -> Iterator[None]:
    """Inside the block a tensor stays what it is; fastai has a second name for PyTorch's method."""
    with ExitStack() as stack:
        for owner in (Tensor, torch):
            if hasattr(owner, "as_subclass"):
                stack.enter_context(patched(owner, "as_subclass", _same))
        yield
