"""``x + 1e-12`` is no ``x + 0``: the zeros and ones of rewrite rules match these numbers alone.

onnxscript's rules that leave out ``x + 0`` and ``x * 1`` match numbers within 1e-8 and 1e-5, so that ``log(p + 1e-15)``
becomes ``log(p)``. Reason: minus infinity where p is 0. Seen in 2.13 with onnxscript 0.7.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter._matcher import SimplePatternMatcher

from posexport.sources.torch_fixes.patch import patched


@contextmanager
def with_exact_constants() -> Iterator[None]:
    """Inside the block a pattern's 0 or 1 matches no other number."""
    match = SimplePatternMatcher._match_constant  # noqa: SLF001

    def match_exactly(self: SimplePatternMatcher, pattern: Any, value: ir.Value) -> Any:
        constant = value.const_value
        is_other = constant is not None and constant.size == 1 and constant.numpy().item() != pattern.value
        if is_other and pattern.value in (0, 1):
            return self.fail(f"{value.name} is not {pattern.value}")
        return match(self, pattern, value)

    with patched(SimplePatternMatcher, "_match_constant", match_exactly):
        yield
