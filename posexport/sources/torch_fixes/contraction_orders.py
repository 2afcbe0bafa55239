"""opt_einsum's orders of products by the sizes of a trace, which stay symbolic.

``opt_einsum.contract`` calls ``int`` of every size to find the cheapest order, so that the graph takes no others. The
order of the traced sizes is as right at others.

Reason: opt_einsum 3.4 compares sizes as numbers. Seen in 2.13.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME

#: the module of a function that finds orders
_MODULE = "opt_einsum.contract"


def _as_traced(number: Any) -> int:
    """``int``, which of a size is that of the trace."""
    hint = number.node.hint if isinstance(number, torch.SymInt) else None
    return int(number if hint is None else hint)


@contextmanager
def with_contraction_orders() -> Iterator[None]:
    """Inside the block opt_einsum, where it is loaded, makes no constants of sizes."""
    module = sys.modules.get(_MODULE)
    scope = {} if module is None else vars(module)
    with ONE_AT_A_TIME:
        scope["int"] = _as_traced  # the file has none of its own, and only calls it
        try:
            yield
        finally:
            del scope["int"]
