"""Greedy rollout, 64 decode steps after a prefill: logits on PyTorch's tokens, and tokens chosen freely.

Two right programs may part where two tokens are almost equally likely: free tokens are compared up to the first step
at which the two best logits lie nearer to each other than `MARGIN` times the error. Rows of different lengths are
padded on the left, as by `posexport.run.generate.loop`, which also chooses the free tokens.

Shape letters: B batch, T tokens, K steps, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.example_inputs import random_ids
from posexport.base.refusal import Refusal
from posexport.base.spec import BATCH, CAPACITY, LOGITS, PAST, InputSpec, LengthContract, Limits, compared_outputs
from posexport.proof.criterion import Array, measure
from posexport.proof.grid.inputs import Feeds, draw, unused_slots
from posexport.proof.grid.point import GridPoint
from posexport.proof.proof import Outcome, Proof, Run
from posexport.proof.report.points import Invariant
from posexport.proof.report.points import Outcome as Verdict
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError, Runner
from posexport.run.cache import Cache, DecoderInterface, Ids, left_padded, of_text
from posexport.run.cache import decoder_interface as ports_of
from posexport.run.generate.config import GenerationConfig
from posexport.run.generate.loop import Model, drain, generate
from posexport.run.generate.result import GenerationRules

if TYPE_CHECKING:
    from posexport.proof.references.definition import DefinitionReference

STEPS = 64
#: of the error, how far apart the two best logits must be for their order to be certain
MARGIN = 20
_PROMPT = 17
_ROWS = 3
#: a prompt may be this long to bring a length at which the formula changes among the steps
_LONGEST = 512


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """``tokens_BK`` were read one by one after a prefill; ``logits_BKV`` are those before each of them."""

    tokens_BK: Ids
    logits_BKV: Array


@dataclass(frozen=True)
class GreedySteps:
    """The check."""

    reference: "DefinitionReference"
    subject: Runner

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with both comparisons; without, for a model without a cache or without logits."""
        del outcome
        proof.progress(0, 0, f"greedy steps, {STEPS} of them")
        invariants = check(self.reference, self.subject, proof)
        return msgspec.structs.replace(report, invariants=[*report.invariants, *invariants])


def check(reference: "DefinitionReference", subject: Runner, proof: Proof) -> Iterator[Invariant]:
    """Returns the results of both comparisons."""
    source, truth, baseline = reference.source, reference.truth, reference.baseline
    decoder = ports_of(source.inputs, source.outputs)
    if decoder is None or not source.limits.kv_cache:
        return
    length, steps = sizes(source.limits)
    prompts = draw_prompts(decoder.tokens, source.limits, length)
    fixed = draw_fixed(decoder.of_rows, source.limits)
    names = [spec.name for spec in source.outputs]
    axes = source.outputs[names.index(LOGITS)].axes

    def rolled(run: Run, tokens_BK: Ids | None = None) -> Rollout:
        return rollout(run, decoder, prompts, steps, names, tokens_BK, fixed)

    greedy = rolled(baseline)
    if source.limits.length_dependent:
        y64 = rolled(truth, greedy.tokens_BK).logits_BKV
    else:
        y64 = in_one_call(reference, decoder, prompts, greedy.tokens_BK, fixed)
    baseline_error = measure(greedy.logits_BKV, y64, axes, None)
    total = length + steps - 1
    largest = baseline_error.error if np.isfinite(baseline_error.error) else 0.0
    limit = proof.judge.tolerance(total, LOGITS, largest)
    ways: dict[str, Run] = {f"logits of {steps} decode steps on PyTorch's greedy tokens": subject}
    if subject.has_fixed_shape_steps:
        ways["the same with masks as wide as the cache"] = partial(_with_wide_mask, subject, decoder)
    for name, run in ways.items():
        try:
            error = measure(rolled(run, greedy.tokens_BK).logits_BKV, y64, axes, None)
        except RunError as failure:
            yield _judged(name, total, "fail", note=f"ONNX Runtime failed: {failure}")
            return
        good = bool(error.error <= limit)
        yield _judged(
            name,
            total,
            "pass" if good else "fail",
            error=error.error if np.isfinite(error.error) else None,
            tolerance=limit,
            note=error.note or ("" if good else f"error {error.error:.1e} exceeds {limit:.1e}"),
        )
    if not np.isfinite(max(error.error, baseline_error.error)):
        return
    # logits that miss the criterion excuse no token
    least = MARGIN * min(max(error.error, baseline_error.error), limit) * error.scale
    free = free_tokens(subject, decoder, prompts, steps, source.limits, proof.about.provider, fixed)
    verdict, note = compare(free, greedy.tokens_BK, gaps(y64), least)
    yield _judged(f"{steps} greedy decode steps choose PyTorch's tokens", total, verdict, note=note)


def sizes(limits: LengthContract) -> tuple[int, int]:
    """Length of the longest prompt, and the number of steps that fit after it.

    A length at which the formula of a length-dependent encoding changes is among the steps, if it is not far.
    """
    limit = limits.max_length
    length = _PROMPT if limit is None else min(_PROMPT, max(1, limit // 2))
    near = [b for b in limits.boundaries if length + STEPS <= b <= _LONGEST and (limit is None or b < limit)]
    if limits.length_dependent and near:
        length = near[0] - STEPS // 2
    return length, STEPS if limit is None else min(STEPS, limit - length + 1)


def draw_prompts(tokens: InputSpec, limits: LengthContract, length: int) -> list[list[int]]:
    """Random ids: rows of different lengths where the model takes padding on the left."""
    rng = np.random.default_rng([length, STEPS])
    drawn = random_ids(tokens, (_ROWS, length), rng).tolist()
    ragged = "left" in limits.paddings
    return [row[: max(1, length - number * length // _ROWS)] if ragged else row for number, row in enumerate(drawn)]


def draw_fixed(fixed: Sequence[InputSpec], limits: Limits) -> Feeds:
    """What an encoder reads: rows of different lengths where it takes padding."""
    longest = _PROMPT if limits.max_length is None else min(_PROMPT, limits.max_length)
    sizes = tuple(limits.proof_sizes[0].items()) if limits.proof_sizes else ()
    point = GridPoint(
        batch=_ROWS,
        length=1,
        encoder_length=longest,
        padding=limits.ragged or "none",
        sizes=sizes,
        least_sizes=tuple(limits.min_sizes.items()),
    )
    return draw(point, fixed)


def rollout(
    run: Run,
    decoder: DecoderInterface,
    prompts: Sequence[Sequence[int]],
    steps: int,
    names: Sequence[str],
    tokens_BK: Ids | None = None,
    fixed: Feeds | None = None,
) -> Rollout:
    """Prefill in one call, then a decode step for each token: of ``tokens_BK``, or the most likely one.

    ``names``: of the outputs of ``run``.
    """
    ids, mask = left_padded(prompts, decoder.tokens.padding)
    past = _empty(decoder, ids, steps - 1)  # the last token is not read
    chosen: list[Ids] = []
    logits: list[Array] = []
    for step in range(steps):
        named = {decoder.tokens.name: ids, decoder.mask.name: mask, **of_text(decoder, ids)}
        outputs = run({**(fixed or {}), **named, **past})
        by_name = dict(zip(names, outputs, strict=True))
        logits.append(by_name[LOGITS][:, -1].copy())
        best_B = logits[-1].argmax(-1) if tokens_BK is None else tokens_BK[:, step]
        chosen.append(best_B.astype(np.int64))
        past = dict(zip(past, (by_name[name] for name in decoder.present), strict=True))
        ids = chosen[-1][:, None]
        mask = np.concatenate((mask, np.ones_like(ids)), 1)
    return Rollout(tokens_BK=np.stack(chosen, 1), logits_BKV=np.stack(logits, 1))


def in_one_call(
    reference: "DefinitionReference",
    decoder: DecoderInterface,
    prompts: Sequence[Sequence[int]],
    tokens_BK: Ids,
    fixed: Feeds,
) -> Array:
    """The logits [B, K, V] before each of ``tokens_BK`` in float64, of prompts and tokens in one call.

    The law holds where no formula depends on the running length.
    """
    steps = tokens_BK.shape[1]
    ids, mask = left_padded(prompts, decoder.tokens.padding)
    ids = np.concatenate((ids, tokens_BK[:, :-1]), 1)
    mask = np.concatenate((mask, np.ones_like(tokens_BK[:, :-1])), 1)
    named = {decoder.tokens.name: ids, decoder.mask.name: mask, **of_text(decoder, ids)}
    outputs = reference.whole_truth({**fixed, **named, **_empty(decoder, ids)})
    names = [spec.name for spec in compared_outputs(reference.source)]
    logits: Array = outputs[names.index(LOGITS)]
    return logits[:, -steps:]


def _empty(decoder: DecoderInterface, ids: Ids, room: int = 0) -> Feeds:
    """An empty cache with room for ``ids`` and ``room`` more tokens: what a static one contains must not matter."""
    sizes = {BATCH: len(ids), PAST: 0, CAPACITY: ids.shape[1] + room}
    zeros = {
        spec.name: np.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes], spec.dtype)
        for spec in decoder.past
    }
    states = {spec.name for spec in decoder.past if spec.role == "state"}
    return {name: array if name in states else unused_slots(array, "nan") for name, array in zeros.items()}


def _with_wide_mask(run: Run, decoder: DecoderInterface, feeds: Feeds) -> list[Array]:
    """A call whose mask is as wide as the cache if it has one new token; slots are finite, as all are read then."""
    if feeds[decoder.tokens.name].shape[1] > 1:
        return run(feeds)
    mask = feeds[decoder.mask.name]
    cache = next(spec for spec in decoder.past if CAPACITY in spec.axes)
    missing = feeds[cache.name].shape[cache.axes.index(CAPACITY)] - mask.shape[1]
    past = {spec.name: np.nan_to_num(feeds[spec.name]) for spec in decoder.past}
    return run({**feeds, **past, decoder.mask.name: np.pad(mask, ((0, 0), (0, missing)))})


def free_tokens(
    runner: Runner,
    decoder: DecoderInterface,
    prompts: Sequence[Sequence[int]],
    steps: int,
    limits: LengthContract,
    provider: str,
    fixed: Feeds | None = None,
) -> list[list[int]] | Refusal:
    """The tokens that ``posexport generate`` chooses, in the same calls; or why it fails."""

    def cache(rows: int, room: int) -> Cache:
        return runner.cache(decoder, rows=rows, room=room, fixed=fixed, provider=provider)

    try:
        generation = drain(
            generate(
                cache, Model(decoder, limits), prompts, GenerationRules(config=GenerationConfig(max_new_tokens=steps))
            )
        )
    except MemoryError:
        raise
    except Exception as err:  # noqa: BLE001 (onnxruntime's exceptions share no base class)
        return Refusal(f"generating failed: {' '.join(str(err).split())}")
    return [completion.tokens for completion in generation.completions]


def gaps(logits_BKV: Array) -> Array:
    """How far the best logit lies above the second, at every step, [B, K]."""
    if logits_BKV.shape[-1] < 2:
        return np.full(logits_BKV.shape[:2], np.inf)
    second, best = np.moveaxis(np.partition(logits_BKV, -2, axis=-1)[..., -2:], -1, 0)
    gap_BK: Array = best - second
    return gap_BK


def compare(
    free: Sequence[Sequence[int]] | Refusal, wanted_BK: NDArray[np.int64], gap_BK: Array, least: float
) -> tuple[Verdict, str]:
    """Whether tokens agree in every row up to its first step with a gap below ``least``, and how many do."""
    if isinstance(free, Refusal):
        return "fail", free.reason
    agreed = 0
    for row, (got, expected, gap) in enumerate(zip(free, wanted_BK.tolist(), gap_BK.tolist(), strict=True)):
        for step, (token, distance) in enumerate(zip(expected, gap, strict=True)):
            if distance < least:
                break
            if step >= len(got) or got[step] != token:
                chosen = f"token {got[step]}" if step < len(got) else "no token"
                return "fail", (
                    f"step {step} of row {row} chooses {chosen}, PyTorch {token}, though the two best logits are "
                    f"{distance:.1e} apart and {least:.1e} is enough"
                )
            agreed += 1
    if not agreed:
        return "skipped", f"in no row are the two best logits {least:.1e} apart at the first step"
    return "pass", f"{agreed} of {wanted_BK.size} tokens are certain"


def _judged(
    name: str, length: int, verdict: Verdict, *, error: float | None = None, tolerance: float | None = None, note: str
) -> Invariant:
    return Invariant(
        name=name, length=length, output=LOGITS, error=error, tolerance=tolerance, verdict=verdict, note=note
    )
