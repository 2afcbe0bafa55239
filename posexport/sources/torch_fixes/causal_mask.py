"""``nn.TransformerEncoder`` and ``nn.TransformerDecoder`` do not look whether a mask is causal.

Without ``is_causal=`` they compare the mask with a causal one. A trace has no values, and ends with a guard on data.
The answer is only a hint that chooses a kernel: where it is False, the mask is added as any other.

Issue: pytorch/pytorch 91171 (the comparison, known not to trace). Seen in 2.13.
"""

from contextlib import AbstractContextManager

from torch import Tensor
from torch.nn.modules import transformer

from posexport.sources.torch_fixes.patch import patched


def without_mask_detection() -> AbstractContextManager[None]:
    """Inside the block a mask is causal where the module says so."""
    return patched(transformer, "_detect_is_causal_mask", _as_stated)  # no public switch


def _as_stated(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: ARG001
    return bool(is_causal)
