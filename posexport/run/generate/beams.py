"""Beam search, with and without sampling, as in transformers.

The score of a candidate is the sum of its tokens' log-probabilities; the score of a finished one is divided by a
power of its number of new tokens (Wu et al., "Google's Neural Machine Translation System",
arXiv:1609.08144, section 7, with the plain length in place of (5 + length) / 6, as in transformers). With sampling,
candidates are drawn without replacement: Kool et al., "Stochastic Beams and Where to Find Them" (arXiv:1903.06059),
section 3.

Prompts of a batch are independent: the result does not depend on the batch. Rows of the KV cache follow the beams.
Shape letters: B prompts, N beams, K candidates, V vocabulary.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.run.cache import DecoderInterface
from posexport.run.generate.result import (
    NOT_NUMBERS,
    Completion,
    Decode,
    Finish,
    Generation,
    GenerationRules,
    Pieces,
    StopTexts,
)
from posexport.run.logits.processor import Scores, TokenRows, log_softmax
from posexport.run.logits.registry import process, processors
from posexport.run.prefill import Reader

#: score of an empty beam; transformers uses the same value
NEVER = np.float32(-1e9)


def beam_search(
    make_reader: Callable[[], Reader],
    decoder: DecoderInterface,
    prompts: Sequence[Sequence[int]],
    rows: TokenRows,
    rules: GenerationRules,
    *,
    limit: int | None,
    repeats: Sequence[int],
    decode: Decode | None,
) -> Generation:
    """Return the best completions of each prompt, best first. For arguments see `posexport.run.generate.loop`."""
    chain = processors(rules.config, rules.setting)
    beams = rules.config.beams
    searches = [
        Search(prompt, rules, limit=limit, repeat=repeat, decode=decode)
        for prompt, repeat in zip(prompts, repeats, strict=True)
    ]
    started = time.perf_counter()
    reader = make_reader()
    logits_RV = reader.prompts(decoder.tokens.padding)
    read, steps = time.perf_counter(), 0
    running, width = searches, 1  # cache rows per search
    while True:
        if np.isnan(logits_RV).any() and not rules.config.remove_invalid_values:
            raise PosexportError(NOT_NUMBERS)
        scores_RV = process(log_softmax(logits_RV), rows, chain)
        kept_rows: list[int] = []
        tokens: list[int] = []
        for number, search in enumerate(running):
            scores_NV = scores_RV[number * width : (number + 1) * width]
            parents, following = search.step(np.repeat(scores_NV, beams // width, axis=0))
            if not search.done:
                kept_rows += [number * width + (parent if width > 1 else 0) for parent in parents]
                tokens += following
        running, width = [search for search in running if not search.done], beams
        if not running:
            break
        reader.cache.reorder(kept_rows)
        rows.take(kept_rows)
        rows.append(tokens)
        if limit is not None and reader.cache.slots >= limit:
            reader.cache.compact(range(len(kept_rows)))
        ids = np.array(tokens, np.int64)[:, None]
        logits_RV = reader.read(ids, np.ones_like(ids))
        steps += len(tokens)
    return Generation(
        completions=[one for search in searches for one in search.completions(rules.config.sequences)],
        prompt_tokens=sum(map(len, prompts)),
        prompt_seconds=read - started,
        step_tokens=steps,
        step_seconds=time.perf_counter() - read,
    )


@dataclass(frozen=True)
class _Finished:
    """A finished sequence, end token included, or an empty beam."""

    tokens: tuple[int, ...] = ()
    score: np.float32 = NEVER
    ended: bool = False


class Search:
    """Running and finished beams of one prompt."""

    def __init__(
        self, prompt: Sequence[int], rules: GenerationRules, *, limit: int | None, repeat: int, decode: Decode | None
    ) -> None:
        self._prompt, self._rules, self._decode = list(prompt), rules, decode
        self._beams = rules.config.beams
        self._keep = max(2, 1 + len(rules.setting.eos)) * self._beams
        self._most = rules.config.most(len(prompt))
        #: fewer if the model's length limit comes first
        self._room = self._most if limit is None else min(self._most, limit + 1 - len(prompt))
        self._random = np.random.default_rng([rules.config.seed, repeat]) if rules.config.samples else None
        self._penalty = 1.0 if rules.config.length_penalty is None else rules.config.length_penalty
        self._early = rules.config.early_stopping or False
        self._tokens: list[tuple[int, ...]] = [()] * self._beams
        # all beams start from the same prompt, so only the first one counts
        self._scores_N = np.where(np.arange(self._beams) == 0, np.float32(0), NEVER)
        self._finished = [_Finished()] * self._beams
        self._improvable = True
        self.done = False

    def step(self, scores_NV: Scores) -> tuple[list[int], list[int]]:
        """Extend the beams by one token, and return the parent beam and the new token of each.

        Args:
            scores_NV: processed log-probabilities of the next token of each beam.
        """
        vocab = scores_NV.shape[1]
        sums_C = (scores_NV.astype(np.float32) + self._scores_N[:, None]).ravel()
        candidates = self._candidates(sums_C)
        sums_K = sums_C[candidates]
        parents, tokens = np.divmod(candidates, vocab)
        continued = [(*self._tokens[parent], int(token)) for parent, token in zip(parents, tokens, strict=True)]
        ends_K = np.array([self._ends(sequence) for sequence in continued])
        following = _best(sums_K + ends_K * NEVER, self._beams)
        self._finish(continued, sums_K, ends_K)
        self._tokens = [continued[index] for index in following]
        self._scores_N = (sums_K + ends_K * NEVER)[following]
        self._update_done(bool(ends_K.all()))
        return [int(parents[index]) for index in following], [int(tokens[index]) for index in following]

    def _candidates(self, sums_C: NDArray[np.float32]) -> NDArray[np.intp]:
        """Indices of the best or of sampled continuations, best first."""
        if self._random is None:
            return _best(sums_C, self._keep)
        with np.errstate(invalid="ignore"):
            keys_C = sums_C.astype(np.float64) + self._random.gumbel(size=sums_C.shape)
        drawn = _best(keys_C, self._keep)
        order: NDArray[np.intp] = drawn[np.argsort(-sums_C[drawn], kind="stable")]
        return order

    def _ends(self, sequence: tuple[int, ...]) -> bool:
        """Whether the last token of a sequence ends it."""
        if sequence[-1] in self._rules.stop_tokens or len(sequence) >= self._room:
            return True
        if not self._rules.stop_texts or self._decode is None:
            return False
        text = self._decode(sequence)
        return any(stop in text for stop in self._rules.stop_texts)

    def _finish(self, continued: list[tuple[int, ...]], sums_K: NDArray[Any], ends_K: NDArray[np.bool_]) -> None:
        """Merge new finished sequences into the finished beams. Only the first N candidates may finish."""
        ended_K = ends_K & (np.arange(len(ends_K)) < self._beams)
        scores_K = sums_K / np.float32((len(self._tokens[0]) + 1) ** self._penalty)
        full = self._early is True and all(beam.ended for beam in self._finished)
        refused = int(full) + int(not self._improvable)
        scores_K = scores_K + NEVER * (refused + ~ended_K)
        now = [_Finished(*beam) for beam in zip(continued, scores_K, ended_K.tolist(), strict=True)]
        merged = [*self._finished, *now]
        self._finished = [merged[index] for index in _best(np.array([beam.score for beam in merged]), self._beams)]

    def _update_done(self, all_end: bool) -> None:
        """Early stopping: done if no running beam can still beat the finished ones."""
        length = self._most if self._early == "never" and self._penalty > 0 else len(self._tokens[0])
        reachable = self._scores_N[0] / np.float32(length**self._penalty)
        least = min(beam.score for beam in self._finished)
        worst = [least if beam.ended else NEVER for beam in self._finished]
        self._improvable &= any(reachable > score for score in worst)
        full = self._early is True and all(beam.ended for beam in self._finished)
        self.done = not self._improvable or full or all_end

    def completions(self, count: int) -> list[Completion]:
        return [self._completion(beam) for beam in self._finished[:count]]

    def _completion(self, beam: _Finished) -> Completion:
        tokens, finish = list(beam.tokens), self._reason(beam.tokens)
        if tokens and tokens[-1] in self._rules.stop_tokens:
            tokens.pop()
        text = None
        if self._decode is not None:
            pieces, stops = Pieces(self._decode, self._prompt), StopTexts(self._rules.stop_texts)
            text = "".join([*(stops.push(pieces.push(token)) for token in tokens), stops.push(pieces.finish())])
            text += stops.finish()
            finish = "stop" if stops.stopped else finish
        return Completion(prompt_tokens=self._prompt, tokens=tokens, text=text, finish=finish, score=float(beam.score))

    def _reason(self, tokens: tuple[int, ...]) -> Finish:
        if tokens and tokens[-1] in self._rules.stop_tokens:
            return "stop"
        return "length" if self._room == self._most else "limit"


def _best(values: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Indices of the largest values in descending order; equal values keep their order."""
    count = min(count, len(values))
    least = np.partition(values, -count)[-count]
    indices = np.flatnonzero(values >= least)
    order: NDArray[np.intp] = indices[np.argsort(-values[indices], kind="stable")][:count]
    return order
