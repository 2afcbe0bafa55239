"""The generation loop of a decoder with a KV cache. A row of a batch gets the same tokens as alone.

Prompts of different lengths are padded on the left. The model computes positions from the attention mask, so padding
shifts no token. Shape letters: B rows, T new tokens, V vocabulary.
"""

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import SEQUENCE, EncodingSpec, InputSpec, LengthContract
from posexport.errors import PosexportError
from posexport.run.cache import Cache, DecoderInterface
from posexport.run.generate.beams import beam_search
from posexport.run.generate.result import (
    NOT_NUMBERS,
    Chooser,
    Completion,
    Decode,
    Finish,
    Generation,
    GenerationRules,
    Piece,
    Pieces,
    StopTexts,
    Streamer,
)
from posexport.run.logits.processor import NONE, TokenRows
from posexport.run.logits.registry import process, processors
from posexport.run.prefill import Reader, check_prompts, recomputed_from, refuse_recomputing


def as_ids(prompts: Sequence[Any], tokens: InputSpec) -> list[list[int]]:
    """Token ids of prompts as ints. Raises PosexportError for an id without an embedding."""
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


@dataclass(frozen=True)
class Model:
    """A decoder for the loop.

    Attributes:
        encodings: position encodings of the layers, for recomputing cached keys.
        decode: converts ids to text; None: pieces are token ids.
    """

    decoder: DecoderInterface
    limits: LengthContract
    encodings: Sequence[EncodingSpec] = ()
    decode: Decode | None = None


def generate(
    make_cache: Callable[[int, int], Cache],
    model: Model,
    prompts: Sequence[Sequence[int]],
    rules: GenerationRules,
    *,
    row_ids: Sequence[bytes] | None = None,
    streams: bool = False,
) -> Iterator[Piece | Generation]:
    """Continue ``prompts``. Yields new pieces while they are generated, and the whole `Generation` at the end.

    Args:
        make_cache: returns a cache for a number of rows and a number of tokens.
        prompts: token ids.
        row_ids: distinguish rows with the same prompt: of the encoder's input.
        streams: the caller uses the pieces.

    Raises:
        PosexportError: no prompts, an empty prompt, one beyond the length limit, stop strings without a tokenizer, or
            pieces with beams. Errors of ONNX Runtime are not caught.
    """
    limits, encodings, decode = model.limits, model.encodings, model.decode
    limit = limits.max_length if SEQUENCE in limits.limited_axes else None
    if decode is None and rules.stop_texts:
        raise PosexportError(
            "this bundle has no tokenizer.json, so it gives no text to stop at; leave stop_strings out, or give "
            "eos_token_id"
        )
    if streams and rules.config.beams > 1:
        raise PosexportError(
            f"beam search knows its text at the end, so {rules.config.beams} beams cannot be streamed; give num_beams=1"
        )
    if streams and rules.config.sequences > 1:
        raise PosexportError("one text of each prompt can be streamed; give num_return_sequences=1")
    check_prompts(prompts, limits, limit, rules.config)
    threshold = recomputed_from(encodings)
    if threshold is not None and not rules.config.recompute:
        refuse_recomputing(prompts, rules.config, encodings, threshold, limit)
    most = [rules.config.most(len(prompt)) for prompt in prompts]
    longest = max(map(len, prompts)) + max(most) - 1  # the last token is not read
    room = longest if limit is None else min(longest, limit)
    rows = TokenRows(prompts, [len(prompt) + count for prompt, count in zip(prompts, most, strict=True)])
    repeats = _repeats(prompts, row_ids)

    def reader() -> Reader:
        cache = make_cache(len(prompts), room)
        return Reader(cache, threshold, prompts, rules.config, at_once=limits.length_dependent)

    if rules.config.beams > 1:
        yield beam_search(reader, model.decoder, prompts, rows, rules, limit=limit, repeats=repeats, decode=decode)
        return
    pieces: list[Piece] = []
    numbered = zip(range(len(prompts)), prompts, repeats, strict=True)
    sequences = [_Sequence(*numbers, rules, limit, decode, pieces) for numbers in numbered]
    yield from _loop(reader, model.decoder, sequences, rows, rules, limit, pieces)


def _repeats(prompts: Sequence[Sequence[int]], row_ids: Sequence[bytes] | None) -> list[int]:
    """For each prompt, how many equal prompts precede it."""
    seen: Counter[tuple[bytes, ...]] = Counter()
    repeats = []
    for prompt, row_id in zip(prompts, row_ids or [b""] * len(prompts), strict=True):
        same = (row_id, np.array(prompt, np.int64).tobytes())
        repeats.append(seen[same])
        seen[same] += 1
    return repeats


def _loop(
    make_reader: Callable[[], Reader],
    decoder: DecoderInterface,
    sequences: "list[_Sequence]",
    token_rows: TokenRows,
    rules: GenerationRules,
    limit: int | None,
    pieces: list[Piece],
) -> Iterator[Piece | Generation]:
    """Greedy search or sampling, one token of every row per step."""
    chain = processors(rules.config, rules.setting)
    started = time.perf_counter()
    reader = make_reader()
    logits_BV = reader.prompts(decoder.tokens.padding)
    read = time.perf_counter()
    cached, steps = sequences, 0  # rows in the cache, finished ones included
    while True:
        scores_BV = logits_BV
        if chain:
            if np.isnan(logits_BV).any() and not rules.config.remove_invalid_values:
                raise PosexportError(NOT_NUMBERS)  # truncation would hide NaN
            scores_BV = process(logits_BV, token_rows, chain)
        for sequence, scores_V in zip(cached, scores_BV, strict=True):
            if sequence.finish is None:
                sequence.take(scores_V)
        yield from pieces
        pieces.clear()
        going = [index for index, sequence in enumerate(cached) if sequence.finish is None]
        if not going:
            break
        if chain:
            token_rows.append([NONE if sequence.finish else sequence.tokens[-1] for sequence in cached])
        if limit is not None and reader.cache.slots >= limit:
            # padding of longer prompts used up the limit, which a row alone would not
            reader.cache.compact(going)
            token_rows.take(going)
            cached = [cached[index] for index in going]
        ids = [decoder.tokens.padding if sequence.finish else sequence.tokens[-1] for sequence in cached]
        keep = [int(sequence.finish is None) for sequence in cached]
        logits_BV = reader.read(np.array([ids]).T, np.array([keep]).T)
        steps += sum(keep)
    yield Generation(
        completions=[sequence.completion() for sequence in sequences],
        prompt_tokens=sum(len(sequence.prompt) for sequence in sequences),
        prompt_seconds=read - started,
        step_tokens=steps,
        step_seconds=time.perf_counter() - read,
    )


class _Sequence:
    """One prompt and its completion so far."""

    def __init__(
        self,
        number: int,
        prompt: Sequence[int],
        repeat: int,
        rules: GenerationRules,
        limit: int | None,
        decode: Decode | None,
        pieces: list[Piece],
    ) -> None:
        self._number, self._rules = number, rules
        self.prompt = list(prompt)
        self._choose = Chooser(samples=rules.config.samples, seed=rules.config.seed, repeat=repeat)
        self._most = rules.config.most(len(prompt))
        self._limit, self._told = limit, pieces
        self._pieces = None if decode is None else Pieces(decode, prompt)
        self._stops = StopTexts(rules.stop_texts)
        self._text = ""
        self.tokens: list[int] = []
        self.finish: Finish | None = None

    def take(self, scores_V: NDArray[Any]) -> None:
        """Choose the next token, and finish the sequence if it is the last."""
        token = self._choose(scores_V)
        if token in self._rules.stop_tokens:
            self._end("stop")
            return
        self.tokens.append(token)
        if self._pieces is None:
            self._told.append((self._number, token))
        else:
            self._tell(self._stops.push(self._pieces.push(token)))
        if self._stops.stopped:
            self._end("stop")
        elif len(self.tokens) >= self._most:
            self._end("length")
        elif self._limit is not None and len(self.prompt) + len(self.tokens) > self._limit:
            self._end("limit")  # the model cannot read this token any more

    def completion(self) -> Completion:
        assert self.finish is not None
        text = None if self._pieces is None else self._text
        return Completion(prompt_tokens=self.prompt, tokens=self.tokens, text=text, finish=self.finish)

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


def drain(events: Iterable[Piece | Generation], streamer: Streamer | None = None) -> Generation:
    """Return the `Generation` that `generate` ends with, and call ``streamer`` with each piece."""
    for event in events:
        if isinstance(event, Generation):
            return event
        if streamer is not None:
            streamer(*event)
    raise AssertionError("generate ends with a Generation")
