"""First, last and end tokens: forced, forbidden until a length is reached, or ever more likely."""

from dataclasses import dataclass

import numpy as np

from posexport.run.generate.config import GenerationConfig, token_ids
from posexport.run.logits.processor import Processor, Scores, Setting, TokenRows, only, without


@dataclass(frozen=True)
class ForcedBos:
    token: int

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return only(scores_BV, [self.token], rows.lengths_B == 1)


def make_forced_bos(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return None if options.forced_bos_token_id is None else ForcedBos(options.forced_bos_token_id)


@dataclass(frozen=True)
class ForcedEos:
    tokens: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return only(scores_BV, self.tokens, rows.lengths_B == rows.most_B - 1)


def make_forced_eos(options: GenerationConfig, _setting: Setting) -> Processor | None:
    forced = options.forced_eos_token_id
    return None if forced is None else ForcedEos(token_ids(forced))


@dataclass(frozen=True)
class MinLength:
    length: int
    eos: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return without(scores_BV, np.array(self.eos), rows.lengths_B < self.length)


def make_min_length(options: GenerationConfig, setting: Setting) -> Processor | None:
    if not options.min_length or not setting.eos or options.min_new_tokens is not None:
        return None
    return MinLength(options.min_length, setting.eos)


@dataclass(frozen=True)
class MinNewTokens:
    count: int
    eos: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        return without(scores_BV, np.array(self.eos)) if rows.new < self.count else scores_BV


def make_min_new_tokens(options: GenerationConfig, setting: Setting) -> Processor | None:
    return MinNewTokens(options.min_new_tokens, setting.eos) if options.min_new_tokens and setting.eos else None


@dataclass(frozen=True)
class ExponentialDecayLengthPenalty:
    start: int
    factor: float
    eos: tuple[int, ...]

    def __call__(self, scores_BV: Scores, rows: TokenRows) -> Scores:
        beyond = rows.new - self.start
        if beyond <= 0:
            return scores_BV
        columns = [token for token in self.eos if 0 <= token < scores_BV.shape[1]]
        before = scores_BV[:, columns]
        finite = np.isfinite(before)
        grown = np.abs(np.where(finite, before, 0)) * (self.factor**beyond - 1)
        changed_BV = scores_BV.copy()
        changed_BV[:, columns] = before + grown.astype(before.dtype)
        return changed_BV


def make_exponential_decay_length_penalty(options: GenerationConfig, setting: Setting) -> Processor | None:
    if options.exponential_decay_length_penalty is None or not setting.eos:
        return None
    start, factor = options.exponential_decay_length_penalty
    return ExponentialDecayLengthPenalty(int(start), factor, setting.eos)
