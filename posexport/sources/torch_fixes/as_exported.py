"""PyTorch's attention, computed by the operators that a graph has, both in a trace and in the reference."""

from collections.abc import Iterator
from contextlib import contextmanager

from posexport.sources.torch_fixes.attention_flags import with_decided_flags
from posexport.sources.torch_fixes.causal_mask import without_mask_detection
from posexport.sources.torch_fixes.compiled import without_compiling
from posexport.sources.torch_fixes.fast_path import without_fast_path
from posexport.sources.torch_fixes.lazy_modules import with_lazy_modules


@contextmanager
def as_exported() -> Iterator[None]:
    """Inside the block attention takes the path of the graph. Outputs of tokens that are not padding stay the same."""
    with with_lazy_modules(), without_compiling(), without_fast_path(), without_mask_detection(), with_decided_flags():
        yield
