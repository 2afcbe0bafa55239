"""``inspect.getmodule`` asks all of ``sys.modules`` for their files, also a lazy module that raises when it is asked.

PyTorch calls it for frames that it notes, as when ``torch.onnx`` is imported. Reason: a package's optional part whose
``__getattr__`` raises an ImportError would refuse every trace in the process. Seen in 2.13 with Python 3.11 to 3.13.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from posexport.sources.torch_fixes.patch import patched

_GETMODULE = inspect.getmodule


@contextmanager
def with_lazy_modules() -> Iterator[None]:
    """Inside the block a frame whose module cannot be looked up has none, and is found by its file."""
    with patched(inspect, "getmodule", _module_of):
        yield


def _module_of(*args: Any) -> ModuleType | None:
    try:
        return _GETMODULE(*args)
    except Exception:  # noqa: BLE001 (whatever a module's __getattr__ raises)
        return None
