"""Continuing prompts with a decoder's cache: a batch of them, each as if it were alone.

Prompts of different lengths are padded on the left, with a mask; the model counts positions by the mask, so that no
token moves. Shape letters: B rows, T new tokens, V vocabulary.
"""

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.banned import Banned
from posexport.runtime.cache import Cache, Ids, Ports, left_padded
from posexport.runtime.feeds import limit_sentence
from posexport.runtime.generation_config import GenerationConfig
from posexport.runtime.sampling import Chooser
from posexport.runtime.streams import Pieces, StopTexts
from posexport.spec import SEQUENCE, EncodingSpec, InputSpec, LengthContract

Finish = Literal["stop", "length", "limit"]
#: a row, and new text of it
Piece = tuple[int, str]
Streamer = Callable[[int, str], None]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What came after one prompt. ``text``: None without a tokenizer.

    ``finish``: ``stop`` (a stop token, which is not among ``tokens``, or a stop text, which is not in ``text``),
    ``length`` (as many tokens as asked for) or ``limit`` (the model takes no more).
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str | None
    finish: Finish


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A completion for every prompt, and how long it took.

    The prompt's time ends with the logits after it; ``step_tokens`` are those that the steps after that gave.
    """

    completions: list[Completion]
    prompt_tokens: int
    prompt_seconds: float
    step_tokens: int
    step_seconds: float

    @property
    def prompt_rate(self) -> float:
        """Tokens of prompts read in a second, padding not counted."""
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def rate(self) -> float:
        """Tokens made in a second after the prompts were read, of all rows."""
        return self.step_tokens / self.step_seconds if self.step_seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A `GenerationConfig` for one bundle: stop tokens and texts apart, and the tokens that its configuration bans."""

    config: GenerationConfig = field(default_factory=GenerationConfig)
    stop_tokens: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    banned: Banned = field(default_factory=Banned)


def as_ids(prompts: Sequence[Any], tokens: InputSpec) -> list[list[int]]:
    """Prompts that are given as ids, checked: whole numbers that the model has embeddings for."""
    rows: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        try:
            ids = [operator.index(token) for token in prompt]
        except TypeError as err:
            raise PosexportError(
                f"prompt {number} is neither a text nor a list of token ids; give all prompts as one or the other"
            ) from err
        if wrong := [token for token in ids if token < 0 or (tokens.size is not None and token >= tokens.size)]:
            most = "" if tokens.size is None else f" to {tokens.size - 1}"
            raise PosexportError(f"prompt {number} holds the id {wrong[0]}; {tokens.name} takes ids from 0{most}")
        rows.append(ids)
    return rows


def generate(
    make_cache: Callable[[int, int], Cache],
    ports: Ports,
    limits: LengthContract,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    *,
    keys: Sequence[bytes] | None = None,
    encodings: Sequence[EncodingSpec] = (),
    decode: Decode | None = None,
    texts: bool = False,
) -> Iterator[Piece | Generation]:
    """Continue ``prompts`` (ids): the rows' new text as it comes, then the whole generation, once.

    ``make_cache`` gives a cache for so many rows and tokens. ``texts``: whoever asks wants the pieces of text.

    ``keys``: what rows continue beside their prompts, where that differs. ``encodings``: the layers', if keys
    are to be recomputed. ``decode``: ids to text.

    Raises PosexportError for no prompts, an empty one, one beyond the limit, and stop texts without a tokenizer; what
    ONNX Runtime raises passes as it is.
    """
    limit = limits.max_length if SEQUENCE in limits.limited_axes else None
    if decode is None and (plan.stop_texts or texts):
        raise PosexportError(
            "this bundle has no tokenizer.json, so it gives no text to stop at or to stream; leave stop_strings and "
            "streaming out"
        )
    _check(prompts, limits, limit)
    threshold = _threshold(encodings)
    if threshold is not None and not plan.config.recompute:
        _refuse_recomputing(prompts, plan.config, encodings, threshold, limit)
    longest = max(map(len, prompts)) + plan.config.max_new_tokens - 1  # the last token is not read
    room = longest if limit is None else min(longest, limit)
    seen: Counter[tuple[bytes, ...]] = Counter()
    rows: list[_Row] = []
    pieces: list[Piece] = []
    for number, (prompt, key) in enumerate(zip(prompts, keys or [b""] * len(prompts), strict=True)):
        same = (key, np.array(prompt, np.int64).tobytes())
        rows.append(_Row(number, prompt, plan, Chooser(plan.config.sampling, seen[same]), limit, decode, pieces))
        seen[same] += 1
    started = time.perf_counter()
    reader = _Reader(make_cache(len(prompts), room), threshold, prompts, plan)
    logits_BV = reader.prompts(ports.tokens.padding)
    read = time.perf_counter()
    cached, steps = rows, 0  # the rows in the cache, those that are finished among them
    while True:
        for row, logits_V in zip(cached, logits_BV, strict=True):
            if row.finish is None:
                row.take(logits_V)
        yield from pieces
        pieces.clear()
        going = [index for index, row in enumerate(cached) if row.finish is None]
        if not going:
            break
        if limit is not None and reader.cache.slots >= limit:
            # padding of longer prompts took the room; every row must have what it has alone
            reader.cache.compact(going)
            cached = [cached[index] for index in going]
        ids = [ports.tokens.padding if row.finish else row.tokens[-1] for row in cached]
        keep = [int(row.finish is None) for row in cached]
        logits_BV = reader.read(np.array([ids]).T, np.array([keep]).T)
        steps += sum(keep)
    yield Generation(
        completions=[row.completion() for row in rows],
        prompt_tokens=sum(map(len, prompts)),
        prompt_seconds=read - started,
        step_tokens=steps,
        step_seconds=time.perf_counter() - read,
    )


class _Row:
    """One prompt and what has been made of it."""

    def __init__(
        self,
        number: int,
        prompt: Sequence[int],
        plan: Plan,
        choose: Chooser,
        limit: int | None,
        decode: Decode | None,
        pieces: list[Piece],
    ) -> None:
        self._number, self._prompt, self._plan, self._choose = number, list(prompt), plan, choose
        self._limit, self._told = limit, pieces
        self._pieces = None if decode is None else Pieces(decode, prompt)
        self._stops = StopTexts(plan.stop_texts)
        self._text = ""
        self.tokens: list[int] = []
        self.finish: Finish | None = None

    def take(self, logits_V: NDArray[Any]) -> None:
        """Choose the next token, and see whether it is the last."""
        token = self._choose(self._plan.banned(logits_V, self._prompt, self.tokens))
        if token in self._plan.stop_tokens:
            self._end("stop")
            return
        self.tokens.append(token)
        if self._pieces is not None:
            self._tell(self._stops.push(self._pieces.push(token)))
        if self._stops.stopped:
            self._end("stop")
        elif len(self.tokens) >= self._plan.config.max_new_tokens:
            self._end("length")
        elif self._limit is not None and len(self._prompt) + len(self.tokens) > self._limit:
            self._end("limit")  # this token itself can no longer be read

    def completion(self) -> Completion:
        assert self.finish is not None
        text = None if self._pieces is None else self._text
        return Completion(prompt_tokens=self._prompt, tokens=self.tokens, text=text, finish=self.finish)

    def _end(self, finish: Finish) -> None:
        if self._pieces is not None:
            self._tell(self._stops.push(self._pieces.finish()))
            if self._stops.stopped:
                finish = "stop"
            self._tell(self._stops.finish())
        self.finish = finish

    def _tell(self, piece: str) -> None:
        self._text += piece
        if piece:
            self._told.append((self._number, piece))


class _Reader:
    """Reads tokens into the cache, and all of them again where their keys have changed."""

    def __init__(self, cache: Cache, threshold: int | None, prompts: Sequence[Sequence[int]], plan: Plan) -> None:
        self.cache, self._threshold, self._prompts, self._chunk = (
            cache,
            threshold,
            prompts,
            plan.config.prefill_chunk_size,
        )

    def prompts(self, padding: int) -> NDArray[Any]:
        """Read the prompts, padded on the left; the logits after them, [B, V]."""
        ids_BT, keep_BT = left_padded(self._prompts, padding)
        length = ids_BT.shape[1]
        step = self._chunk or length
        for start in range(0, length, step):
            logits_BV = self.read(ids_BT[:, start : start + step], keep_BT[:, start : start + step])
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


def _threshold(encodings: Sequence[EncodingSpec]) -> int | None:
    """Row length beyond which the cached keys of some layer are computed again."""
    return min((spec.cached_keys_until for spec in encodings if spec.cached_keys_until is not None), default=None)


def _check(prompts: Sequence[Sequence[int]], limits: LengthContract, limit: int | None) -> None:
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


def _refuse_recomputing(
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    encodings: Sequence[EncodingSpec],
    threshold: int,
    limit: int | None,
) -> None:
    # of a rotation inside a window, the rotation's name
    rotation = next(spec.name.partition("+")[0] for spec in encodings if spec.cached_keys_until == threshold)
    for number, prompt in enumerate(prompts):
        longest = len(prompt) + config.max_new_tokens - 1  # the last token is not read
        longest = longest if limit is None else min(longest, limit)
        first = min(len(prompt), config.prefill_chunk_size or len(prompt))
        if first <= threshold < longest:
            raise PosexportError(
                f"prompt {number} is to be read up to {longest} tokens, {first} of them at first, and beyond "
                f"{threshold} all cached keys of {rotation} change; allow to recompute them, or ask for fewer tokens"
            )


def drain(events: Iterable[Piece | Generation], streamer: Streamer | None = None) -> Generation:
    """What `generate` ends with; ``streamer`` is told the pieces on the way."""
    for event in events:
        if isinstance(event, Generation):
            return event
        if streamer is not None:
            streamer(*event)
    raise AssertionError("generate ends with a Generation")
