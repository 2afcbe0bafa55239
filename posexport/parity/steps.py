"""64 greedy steps behind a prompt, with the cache: logits on PyTorch's tokens, and tokens chosen freely.

Two right programs may part where two tokens are almost equally likely: free tokens are compared up to the first step
at which the two best logits lie nearer to each other than `MARGIN` times the error. Rows of different lengths are
padded on the left, as `posexport.runtime.generate` pads them, which also chooses the free tokens. Imports no torch.

Shape letters: B batch, T tokens, K steps, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posexport.parity.criterion import Array, measure
from posexport.parity.criterion import tolerance as allowed
from posexport.parity.draw import Feeds, draw, ids
from posexport.parity.grid import GridPoint
from posexport.parity.ort import RunError, Runner
from posexport.parity.report import Invariant, Verdict
from posexport.runtime.cache import LOGITS, Cache, Ids, Ports, left_padded, ports
from posexport.runtime.generate import Plan, drain, generate
from posexport.runtime.generation_config import GenerationConfig
from posexport.spec import BATCH, CAPACITY, PAST, Envelope, InputSpec, OutputSpec
from posexport.targets.dtypes import Precision

Run = Callable[[Feeds], list[Array]]
STEPS = 64
#: of the error, how far apart the two best logits must be for their order to be certain
MARGIN = 20
_PROMPT = 17
_ROWS = 3
#: a prompt may be this long to bring a length at which the formula changes among the steps
_LONGEST = 512


@dataclass(frozen=True, kw_only=True)
class Walk:
    """``tokens_BK`` were read one by one after a prompt; ``logits_BKV`` are those before each of them."""

    tokens_BK: Ids
    logits_BKV: Array


def check(
    runner: Runner,
    *,
    truth: Run,
    own: Run,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    envelope: Envelope,
    precision: Precision,
    provider: str,
    tolerance: float | None = None,
) -> Iterator[Invariant]:
    """Both comparisons; none for a model without a cache or without logits.

    ``truth`` runs the definition in float64, ``own`` in the model's precision.
    """
    of = ports(inputs, outputs)
    if of is None or not envelope.cached:
        return
    length, steps = sizes(envelope)
    prompts = draw_prompts(of.tokens, envelope, length)
    fixed = draw_fixed(of.fixed, envelope)
    names = [spec.name for spec in outputs]

    def walked(run: Run, tokens_BK: Ids | None = None) -> Walk:
        return walk(run, of, prompts, steps, names, tokens_BK, fixed)

    own_walk = walked(own)
    wanted = walked(truth, own_walk.tokens_BK).logits_BKV
    axes = outputs[names.index(LOGITS)].axes
    own_error = measure(own_walk.logits_BKV, wanted, axes, None)
    baseline = own_error.error if np.isfinite(own_error.error) else 0.0
    limit = allowed(precision, LOGITS, baseline, chosen=tolerance)
    total = length + steps - 1
    name = f"logits of {steps} decode steps on PyTorch's greedy tokens"
    try:
        got = measure(walked(runner, own_walk.tokens_BK).logits_BKV, wanted, axes, None)
    except RunError as failure:
        yield _judged(name, total, "fail", note=f"ONNX Runtime failed: {failure}")
        return
    good = bool(got.error <= limit)
    yield _judged(
        name,
        total,
        "pass" if good else "fail",
        error=got.error if np.isfinite(got.error) else None,
        tolerance=limit,
        note=got.note or ("" if good else f"error {got.error:.1e} exceeds {limit:.1e}"),
    )
    if not np.isfinite(max(got.error, own_error.error)):
        return
    # logits that miss the criterion excuse no token
    least = MARGIN * min(max(got.error, own_error.error), limit) * got.scale
    free = free_tokens(runner, of, prompts, steps, envelope, provider, fixed)
    verdict, note = compare(free, own_walk.tokens_BK, gaps(wanted), least)
    yield _judged(f"{steps} greedy decode steps choose PyTorch's tokens", total, verdict, note=note)


def sizes(envelope: Envelope) -> tuple[int, int]:
    """Length of the longest prompt, and how many steps fit behind it.

    A length at which the formula of a length-dependent encoding changes is among the steps, if it is not far.
    """
    limit = envelope.limit
    length = _PROMPT if limit is None else min(_PROMPT, max(1, limit // 2))
    near = [b for b in envelope.boundaries if length + STEPS <= b <= _LONGEST and (limit is None or b < limit)]
    if envelope.length_dependent and near:
        length = near[0] - STEPS // 2
    return length, STEPS if limit is None else min(STEPS, limit - length + 1)


def draw_prompts(tokens: InputSpec, envelope: Envelope, length: int) -> list[list[int]]:
    """Random ids: rows of different lengths where the model takes padding on the left."""
    rng = np.random.default_rng([length, STEPS])
    drawn = ids(tokens, (_ROWS, length), rng).tolist()
    ragged = "left" in envelope.paddings
    return [row[: max(1, length - number * length // _ROWS)] if ragged else row for number, row in enumerate(drawn)]


def draw_fixed(fixed: Sequence[InputSpec], envelope: Envelope) -> Feeds:
    """What an encoder reads: rows of different lengths where it takes padding."""
    longest = _PROMPT if envelope.limit is None else min(_PROMPT, envelope.limit)
    return draw(GridPoint(batch=_ROWS, length=1, memory=longest, padding=envelope.ragged or "none"), fixed)


def walk(
    run: Run,
    of: Ports,
    prompts: Sequence[Sequence[int]],
    steps: int,
    names: Sequence[str],
    tokens_BK: Ids | None = None,
    fixed: Feeds | None = None,
) -> Walk:
    """Read the prompts in one call, then a token at a time: those of ``tokens_BK``, or the best ones.

    ``names``: of what ``run`` gives.
    """
    given, mask = left_padded(prompts, of.tokens.padding)
    sizes = {BATCH: len(prompts), PAST: 0, CAPACITY: given.shape[1] + steps}
    # nothing is in a cache yet: what a static one holds must not matter
    held = {s.name: np.full([sizes[a] if isinstance(a, str) else a for a in s.axes], np.nan, s.dtype) for s in of.past}
    chosen: list[Ids] = []
    logits: list[Array] = []
    for step in range(steps):
        numbers = {} if of.positions is None else {of.positions.name: np.full_like(given, -1)}
        outputs = run({**(fixed or {}), of.tokens.name: given, of.mask.name: mask, **numbers, **held})
        found = dict(zip(names, outputs, strict=True))
        logits.append(found[LOGITS][:, -1].copy())
        best_B = logits[-1].argmax(-1) if tokens_BK is None else tokens_BK[:, step]
        chosen.append(best_B.astype(np.int64))
        held = dict(zip(held, (found[name] for name in of.present), strict=True))
        given = chosen[-1][:, None]
        mask = np.concatenate((mask, np.ones_like(given)), 1)
    return Walk(tokens_BK=np.stack(chosen, 1), logits_BKV=np.stack(logits, 1))


def free_tokens(
    runner: Runner,
    of: Ports,
    prompts: Sequence[Sequence[int]],
    steps: int,
    envelope: Envelope,
    provider: str,
    fixed: Feeds | None = None,
) -> list[list[int]] | str:
    """The tokens that ``posexport generate`` chooses, in the same calls; or why it fails."""

    def cache(rows: int, room: int) -> Cache:
        return runner.cache(of, rows=rows, room=room, fixed=fixed, provider=provider)

    try:
        generation = drain(generate(cache, of, envelope, prompts, Plan(config=GenerationConfig(max_new_tokens=steps))))
    except MemoryError:
        raise
    except Exception as err:  # noqa: BLE001 (onnxruntime's exceptions share no base class of their own)
        return f"generating failed: {' '.join(str(err).split())}"
    return [one.tokens for one in generation.completions]


def gaps(logits_BKV: Array) -> Array:
    """How far the best logit lies above the second, at every step, [B, K]."""
    if logits_BKV.shape[-1] < 2:
        return np.full(logits_BKV.shape[:2], np.inf)
    second, best = np.moveaxis(np.partition(logits_BKV, -2, axis=-1)[..., -2:], -1, 0)
    found: Array = best - second
    return found


def compare(
    free: Sequence[Sequence[int]] | str, wanted_BK: NDArray[np.int64], gap_BK: Array, least: float
) -> tuple[Verdict, str]:
    """Whether tokens agree in every row up to its first step with a gap below ``least``, and how many do."""
    if isinstance(free, str):
        return "fail", free
    agreed = 0
    for row, (got, wanted, gap) in enumerate(zip(free, wanted_BK.tolist(), gap_BK.tolist(), strict=True)):
        for step, (token, distance) in enumerate(zip(wanted, gap, strict=True)):
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
