"""The last answer, given again for the same inputs: an encoder is asked once for all calls of its decoder.

Whisper's encoder reads 30 seconds of sound whatever the decoder does; in float64 that takes seconds, and a proof makes
thousands of the decoder's calls. Imports no torch.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from posexport.runtime.wrapped_session import WrappedSession


class Remembered:
    """``run``, called anew only for other inputs (arrays by name) than the last."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._key = b""
        self._found: Any = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The answer for these arguments."""
        key = _key((*args, named))
        if key != self._key:
            self._found, self._key = self._run(*args, **named), key
        return self._found


class RememberingSession(WrappedSession):
    """A session that runs anew only for other inputs than the last."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._key = b""
        self._found: Any = None

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], options: Any = None) -> Any:
        key = _key((list(names), feeds))
        if key != self._key:
            self._found, self._key = self._session.run(names, feeds, options), key
        return self._found


def _key(value: Any) -> bytes:
    digest = hashlib.blake2b()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            for name in value:
                digest.update(repr(name).encode())
                add(value[name])
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        elif value is None or isinstance(value, str):
            digest.update(repr(value).encode())
        else:
            # NumPy has no bfloat16; float32 holds every value of it
            if str(getattr(value, "dtype", "")) == "torch.bfloat16":
                value = value.float()
            array = np.ascontiguousarray(value.cpu() if hasattr(value, "cpu") else value)
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(array.data)

    add(value)
    return digest.digest()
