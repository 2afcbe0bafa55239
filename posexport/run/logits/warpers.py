"""What sampling draws from: temperature, and which of the likeliest tokens are kept.

Fan et al., "Hierarchical Neural Story Generation" (arXiv:1805.04833), section 5.4.

Holtzman et al., "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751), section 3.1. Among equally
likely tokens, higher ids are kept first, as in transformers.

Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs" (arXiv:2407.01082).

Potraghloo et al., "Top-H Decoding: Adapting the Creativity and Coherence with Bounded Entropy in Text Generation"
(arXiv:2509.02510). Considers the 100 most likely tokens, as transformers does.

Meister et al., "Locally Typical Sampling" (arXiv:2202.00666), section 4.

Hewitt et al., "Truncation Sampling as Language Model Desmoothing" (arXiv:2210.15191), section 4.1.

Hewitt et al., "Truncation Sampling as Language Model Desmoothing" (arXiv:2210.15191), section 4.2.
"""

from dataclasses import dataclass

import numpy as np

from posexport.run.generate.config import TOP_K, GenerationConfig
from posexport.run.logits.processor import Processor, Scores, Setting, TokenRows, log_softmax, softmax, truncate


@dataclass(frozen=True)
class Temperature:
    temperature: float

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        scaled_BV: Scores = scores_BV.astype(np.float64) / self.temperature  # float32 would overflow
        return scaled_BV


def make_temperature(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return None if options.temperature in (None, 0, 1) else Temperature(options.temperature)


@dataclass(frozen=True)
class TopK:
    count: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        if self.count >= scores_BV.shape[1]:
            return scores_BV
        least_B1 = np.partition(scores_BV, -self.count, axis=-1)[:, -self.count][:, None]
        changed_BV: Scores = np.where(scores_BV < least_B1, -np.inf, scores_BV).astype(scores_BV.dtype)
        return changed_BV


def make_top_k(options: GenerationConfig, setting: Setting) -> Processor | None:
    count = TOP_K if options.top_k is None else options.top_k
    return TopK(max(count, setting.least)) if count else None


@dataclass(frozen=True)
class TopP:
    p: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        changed_BV = np.full_like(scores_BV, -np.inf)
        for changed_V, scores_V in zip(changed_BV, scores_BV, strict=True):
            possible = np.flatnonzero(scores_V > -np.inf)  # few, after top_k
            order = possible[np.argsort(scores_V[possible], kind="stable")]
            sums = np.cumsum(softmax(scores_V[order].astype(np.float64)[None])[0])
            keep = sums > 1 - self.p
            keep[-self.least :] = True
            changed_V[order[keep]] = scores_V[order[keep]]
        return changed_BV


def make_top_p(options: GenerationConfig, setting: Setting) -> Processor | None:
    return None if options.top_p is None or options.top_p >= 1 else TopP(options.top_p, setting.least)


@dataclass(frozen=True)
class MinP:
    fraction: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        p_BV = softmax(scores_BV)
        return truncate(scores_BV, p_BV >= self.fraction * p_BV.max(-1, keepdims=True), self.least)


def make_min_p(options: GenerationConfig, setting: Setting) -> Processor | None:
    return None if options.min_p is None else MinP(options.min_p, setting.least)


MOST = 100


@dataclass(frozen=True)
class TopH:
    share: float

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        order_BK = np.argsort(-scores_BV, axis=-1, kind="stable")[:, :MOST]
        best_BK = np.take_along_axis(scores_BV, order_BK, -1)
        p_BK = softmax(best_BK.astype(np.float64))
        terms_BK = -p_BK * np.log(np.where(p_BK > 0, p_BK, 1))
        keep_BK = np.cumsum(terms_BK, -1) <= terms_BK.sum(-1, keepdims=True) * self.share
        keep_BK[:, 0] = True
        changed_BV = np.full_like(scores_BV, -np.inf)
        np.put_along_axis(changed_BV, order_BK, np.where(keep_BK, best_BK, -np.inf).astype(scores_BV.dtype), -1)
        return changed_BV


def make_top_h(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return None if options.top_h is None else TopH(options.top_h)


@dataclass(frozen=True)
class Typical:
    p: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        log_BV = log_softmax(scores_BV.astype(np.float64))
        p_BV = np.exp(log_BV)
        entropy_B1 = -(p_BV * np.where(p_BV > 0, log_BV, 0)).sum(-1, keepdims=True)
        distance_BV = np.abs(-log_BV - entropy_B1)
        order_BV = np.argsort(distance_BV, axis=-1, kind="stable")
        sorted_BV = np.take_along_axis(distance_BV, order_BV, -1)
        sums_BV = np.cumsum(np.take_along_axis(p_BV, order_BV, -1), -1)
        last_B1 = np.minimum((sums_BV < self.p).sum(-1, keepdims=True), scores_BV.shape[1] - 1)
        keep_BV = sorted_BV <= np.take_along_axis(sorted_BV, last_B1, -1)
        keep_BV[:, : self.least] = True
        changed_BV = np.full_like(scores_BV, -np.inf)
        chosen_BV = np.where(keep_BV, np.take_along_axis(scores_BV, order_BV, -1), -np.inf)
        np.put_along_axis(changed_BV, order_BV, chosen_BV.astype(scores_BV.dtype), -1)
        return changed_BV


def make_typical(options: GenerationConfig, setting: Setting) -> Processor | None:
    return None if options.typical_p is None or options.typical_p >= 1 else Typical(options.typical_p, setting.least)


@dataclass(frozen=True)
class Epsilon:
    p: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        return truncate(scores_BV, softmax(scores_BV) >= self.p, self.least)


def make_epsilon(options: GenerationConfig, setting: Setting) -> Processor | None:
    return Epsilon(options.epsilon_cutoff, setting.least) if options.epsilon_cutoff else None


@dataclass(frozen=True)
class Eta:
    eta: float
    least: int

    def __call__(self, scores_BV: Scores, _rows: TokenRows) -> Scores:
        log_BV = log_softmax(scores_BV.astype(np.float64))
        p_BV = np.exp(log_BV)
        entropy_B1 = -(p_BV * np.where(p_BV > 0, log_BV, 0)).sum(-1, keepdims=True)
        least_B1 = np.minimum(self.eta, np.sqrt(self.eta) * np.exp(-entropy_B1))
        return truncate(scores_BV, p_BV >= least_B1, self.least)


def make_eta(options: GenerationConfig, setting: Setting) -> Processor | None:
    return Eta(options.eta_cutoff, setting.least) if options.eta_cutoff else None


def renormalize(scores_BV: Scores, _rows: TokenRows) -> Scores:
    return log_softmax(scores_BV)


def make_renormalize(options: GenerationConfig, _setting: Setting) -> Processor | None:
    return renormalize if options.renormalize_logits else None
