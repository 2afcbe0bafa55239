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


class _IntType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int)

    def __call__(cls, *args: Any, **kwargs: Any) -> int:
        hint = args[0].node.hint if args and isinstance(args[0], torch.SymInt) else None
        return int(*args, **kwargs) if hint is None else int(hint)


class _TracedInt(metaclass=_IntType):
    """``int`` that returns a size as it is in the trace."""


@contextmanager
def with_contraction_orders() -> Iterator[None]:
    """Inside the block opt_einsum, where it is loaded, makes no constants of sizes."""
    scope = vars(sys.modules[_MODULE]) if _MODULE in sys.modules else None
    with ONE_AT_A_TIME:
        if scope is not None:
            scope["int"] = _TracedInt
        try:
            yield
        finally:
            if scope is not None:
                scope.pop("int", None)
