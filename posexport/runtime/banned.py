"""Tokens that a checkpoint's configuration forbids to generate.

``suppress_tokens`` never come, ``begin_suppress_tokens`` not as the first new token (both Whisper's), and the last
token of each of ``bad_words_ids`` not behind the others (Marian's padding, alone). As transformers has them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray


class Banned(msgspec.Struct, frozen=True, kw_only=True):
    """What is forbidden, by the keys of ``generation_config.json`` and ``config.json``; None: nothing."""

    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None

    def __call__(self, logits_V: NDArray[Any], prompt: Sequence[int], new: Sequence[int]) -> NDArray[Any]:
        """The logits behind ``prompt`` and ``new``, minus infinity where a token is forbidden."""
        forbidden = [*(self.suppress_tokens or ()), *((self.begin_suppress_tokens or ()) if not new else ())]
        before = [*prompt, *new]
        for *lead, last in self.bad_words_ids or ():
            if before[len(before) - len(lead) :] == lead:
                forbidden.append(last)
        # a configuration may name tokens that a cut vocabulary has no more
        known = [token for token in forbidden if 0 <= token < len(logits_V)]
        if not known:
            return logits_V
        allowed_V: NDArray[Any] = logits_V.copy()
        allowed_V[known] = -np.inf
        return allowed_V
