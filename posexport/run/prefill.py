"""Prompts and decode steps read into a KV cache, and when all of a row is read again.

Shape letters: B rows, T new tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import EncodingSpec, LengthContract
from posexport.errors import PosexportError
from posexport.run.cache import Cache, Ids, left_padded
from posexport.run.feeds import limit_sentence
from posexport.run.generate.config import GenerationConfig
from posexport.run.logits.processor import NONE


class Reader:
    """Reads tokens into the cache, and all of them again where their keys have changed.

    ``at_once``: a prompt is read in chunks only if the config says so, as chunks change what is computed.
    """

    def __init__(
        self,
        cache: Cache,
        threshold: int | None,
        prompts: Sequence[Sequence[int]],
        config: GenerationConfig,
        *,
        at_once: bool = False,
    ) -> None:
        self.cache, self._threshold, self._prompts, self._chunk = cache, threshold, prompts, config.prefill_chunk_size
        self._at_once = at_once

    def prompts(self, padding: int) -> NDArray[Any]:
        """Read the prompts, padded on the left, but for tokens that the cache has kept; the logits after, [B, V]."""
        ids_BT, keep_BT = (array[:, self.cache.slots :] for array in left_padded(self._prompts, padding))
        ids_BT = np.where(ids_BT == NONE, padding, ids_BT)
        length = ids_BT.shape[1]
        ends = self.cache.chunk_ends(keep_BT, self._chunk or (length if self._at_once else None))
        for start, end in zip([0, *ends], ends, strict=False):
            logits_BV = self.read(ids_BT[:, start:end], keep_BT[:, start:end])
        self.cache.prompt_read()
        return logits_BV

    def read(self, ids_BT: Ids, keep_BT: Ids) -> NDArray[Any]:
        """The logits after these tokens, [B, V]."""
        before_B = self.cache.tokens_B
        if _crosses(before_B, before_B + keep_BT.sum(1), self._threshold):
            ids_BT = np.concatenate((self.cache.ids_BS, ids_BT), 1)
            keep_BT = np.concatenate((self.cache.mask_BS, keep_BT), 1)
            self.cache.clear(len(ids_BT))
        return self.cache.read(ids_BT, keep_BT)


def _crosses(before: NDArray[Any], after: NDArray[Any], threshold: int | None) -> bool:
    """A row grows beyond the threshold; the keys of its tokens, if it has any, were made for rows up to there."""
    return threshold is not None and bool(((before <= threshold) & (after > threshold)).any())


def recomputed_from(encodings: Sequence[EncodingSpec]) -> int | None:
    """Row length beyond which the cached keys of some layer are computed again."""
    return min((spec.cached_keys_until for spec in encodings if spec.cached_keys_until is not None), default=None)


def check_prompts(
    prompts: Sequence[Sequence[int]], limits: LengthContract, limit: int | None, config: GenerationConfig
) -> None:
    """PosexportError for no prompts, an empty one, one beyond the model's limit or ``max_length``."""
    if not prompts:
        raise PosexportError("got no prompts; give at least one")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise PosexportError(f"prompt {number} is empty; give at least one token")
        if limit is not None and len(prompt) > limit:
            raise PosexportError(
                f"prompt {number} has {len(prompt)} tokens and is longer than {limit} positions: "
                f"{limit_sentence(limits)}; shorten it"
            )
        if config.most(len(prompt)) < 1:
            raise PosexportError(
                f"prompt {number} has {len(prompt)} tokens and max_length is {config.max_length}, which leaves none to "
                "generate; give max_new_tokens"
            )


def refuse_recomputing(
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    encodings: Sequence[EncodingSpec],
    threshold: int,
    limit: int | None,
) -> None:
    """PosexportError where a row would outgrow ``threshold``, beyond which its cached keys change."""
    # of a rotation inside a window, the rotation's name
    rotation = next(spec.name.partition("+")[0] for spec in encodings if spec.cached_keys_until == threshold)
    for number, prompt in enumerate(prompts):
        longest = len(prompt) + config.most(len(prompt)) - 1  # the last token is not read
        longest = longest if limit is None else min(longest, limit)
        first = min(len(prompt), config.prefill_chunk_size or len(prompt))
        if first <= threshold < longest:
            raise PosexportError(
                f"prompt {number} is to be read up to {longest} tokens, {first} of them at first, and beyond "
                f"{threshold} all cached keys of {rotation} change; allow to recompute them, or ask for fewer tokens"
            )
