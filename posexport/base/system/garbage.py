"""Python's collector looks through all that is imported, again and again, while a trace makes many small objects.

That is a sixth of the time of a trace.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from posexport.base.system.one_at_a_time import ONE_AT_A_TIME

#: new objects until the collector looks at them, by default 700
_MANY = 100_000


@contextmanager
def few_collections() -> Iterator[None]:
    """Inside the block, existing objects are not scanned, and new ones less often."""
    with ONE_AT_A_TIME:
        thresholds, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
        if not is_frozen:  # else the application froze what it has, and keeps it so
            gc.freeze()
        if thresholds[0]:  # else it collects nothing
            gc.set_threshold(max(_MANY, thresholds[0]), *thresholds[1:])
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            if not is_frozen:
                gc.unfreeze()
