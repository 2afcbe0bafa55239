"""A few calls of a full model whose reduced model was proven: all paddings in one batch, decode steps, refusals.

Layers, lengths and branches are proven on the reduced model; these calls show that its layers compute what the full
definition does when all of them are in a row. The definition reads each weight once for all rows of a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np

from posexport.base.spec import LOGITS
from posexport.graph.lowering.blocks import BLOCK
from posexport.proof.criterion import measure
from posexport.proof.grid.point import GridPoint
from posexport.proof.invariants import rollout
from posexport.proof.proof import Outcome, Proof
from posexport.proof.references.definition import DefinitionReference
from posexport.proof.report.points import Invariant
from posexport.proof.report.points import Outcome as Verdict
from posexport.proof.report.report import Report
from posexport.proof.subjects.runner import RunError, Runner
from posexport.run.cache import decoder_interface

#: tokens of the batch with all paddings
_TOKENS = 17
#: decode steps that follow greedy search
STEPS = 16
#: weights up to which a call is long enough for tiled attention; of more a decode step is at the end of a context
_SHORT = 1_000_000_000


def few(points: Sequence[GridPoint], weights: int, *, fixed: bool = False) -> list[GridPoint]:
    """Of a grid's points those of a full model with this many weights; inputs outside the limits cost nothing.

    Images have the largest size: only there layers that attend to windows differ from those that attend to all of it.
    ``fixed``: an input is the same at all points of a batch size, so that one batch size costs one call of an encoder.
    """
    accepted = [p for p in points if not (p.must_be_rejected or p.position_ids_given or p.cached)]
    largest = max(accepted, key=lambda point: prod(size for _, size in point.sizes))
    if not largest.length_estimated:
        sizes = {"sizes": largest.sizes, "sound_tokens": largest.sound_tokens}
        accepted = [msgspec.structs.replace(p, **sizes) for p in accepted]
    long_enough = [p for p in accepted if p.tokens >= _TOKENS] or accepted
    length = min(p.length for p in long_enough)
    rows = max(p.batch for p in accepted)
    batch = [p for p in long_enough if (p.length, p.batch) == (length, rows)]
    padded = [p for p in batch if p.padding.startswith("ragged")] or batch
    of_one_draw = [p for p in padded if p.padding == padded[-1].padding]
    chosen = [p for p in of_one_draw if not p.calls][:1] + [p for p in of_one_draw if p.calls][:1]
    tiled = [p for p in accepted if p.tokens > BLOCK and p.padding == "none" and not p.calls and p.image is None]
    at_end = [p for p in points if p.cached and p.tokens == 1]
    last = tiled if weights <= _SHORT else at_end
    chosen += sorted(last, key=lambda p: (p.length, p.batch))[:1]
    chosen += [p for p in points if p.must_be_rejected]
    if fixed:
        chosen = [msgspec.structs.replace(p, batch=rows) for p in chosen]
    return [*dict.fromkeys(chosen)]


@dataclass(frozen=True)
class ChosenTokens:
    """The check of a decoder: the graph's own greedy search, whose tokens the definition then reads in one call."""

    reference: DefinitionReference
    subject: Runner

    def __call__(self, proof: Proof, outcome: Outcome, report: Report) -> Report:
        """The report with two comparisons; without, for a model without a cache or without logits."""
        source = self.reference.source
        decoder = decoder_interface(source.inputs, source.outputs)
        if decoder is None or not source.limits.kv_cache:
            return report
        proof.progress(0, 0, "greedy search of the full model")
        length, most = rollout.sizes(source.limits)
        steps = min(STEPS, most)
        prompts = rollout.draw_prompts(decoder.tokens, source.limits, length)
        fixed = rollout.draw_fixed(decoder.of_rows, source.limits)
        names = [spec.name for spec in source.outputs]
        name = f"{steps} greedy decode steps of the full model choose the definition's tokens"
        total = length + steps - 1

        try:
            searched = rollout.rollout(self.subject, decoder, prompts, steps, names, fixed=fixed)
        except RunError as failure:
            return _with(report, _invariant(name, total, "fail", f"ONNX Runtime failed: {failure}"))
        tokens_BK = searched.tokens_BK
        self.subject.release()
        if source.limits.length_dependent:
            truth = self.reference.truth
            y64 = rollout.rollout(truth, decoder, prompts, steps, names, tokens_BK, fixed).logits_BKV
        else:
            y64 = rollout.in_one_call(self.reference, decoder, prompts, tokens_BK, fixed)
        error = measure(searched.logits_BKV, y64, source.outputs[names.index(LOGITS)].axes, None)
        baseline = max((value for (_, output), value in outcome.largest.items() if output == LOGITS), default=0.0)
        limit = proof.judge.tolerance(total, LOGITS, baseline)
        good = bool(error.error <= limit)
        logits = Invariant(
            name=f"logits of {steps} decode steps of the full model",
            length=total,
            output=LOGITS,
            error=error.error if np.isfinite(error.error) else None,
            tolerance=limit,
            verdict="pass" if good else "fail",
            note=error.note or ("" if good else f"error {error.error:.1e} exceeds {limit:.1e}"),
        )
        least = rollout.MARGIN * limit * error.scale
        verdict, note = rollout.compare(tokens_BK.tolist(), y64.argmax(-1), rollout.gaps(y64), least)
        return _with(report, logits, _invariant(name, total, verdict, note))


def _invariant(name: str, length: int, verdict: Verdict, note: str) -> Invariant:
    return Invariant(name=name, length=length, output=LOGITS, error=None, tolerance=None, verdict=verdict, note=note)


def _with(report: Report, *invariants: Invariant) -> Report:
    return msgspec.structs.replace(report, invariants=[*report.invariants, *invariants])
