"""The largest size of every axis that a user's module takes, by trying."""

import contextlib

from posexport.errors import PosexportError
from posexport.modules.axes.limits import search_samples
from posexport.modules.axes.sizes import Range
from posexport.modules.length_search import LONGEST, Found, search
from posexport.modules.trial import NoRoomError, Sizes, Trial
from posexport.spec import BATCH, SAMPLES, LengthContract

#: a limit that is known is tried at once up to here; a longer one is approached, as far as memory and time allow
_AT_ONCE = 1024
#: times the example's size, up to which the end of an axis beside batch and sequence is looked for
_FURTHER = 4


def of_tokens(trial: Trial, base: Sizes, axis: str, limits: LengthContract, step: int) -> Found:
    """The longest input, in tokens of ``axis``, which varies by ``step``."""
    known = limits.max_length if axis in limits.limited_axes else None
    alone = {**base, BATCH: 1} if BATCH in base else base

    def attempt(length: int) -> str:
        return trial.attempt({**alone, axis: length})

    # an encoding of posexport's says what is known; a table of the module's own may still be shorter
    if known is not None and known <= base[axis]:
        return Found(known)
    if base[axis] > step:
        with contextlib.suppress(PosexportError):  # it may take no shorter one
            trial.follow(axis, alone, {**alone, axis: base[axis] - step})
    try:
        if known is not None and known <= _AT_ONCE and not attempt(known):
            return Found(known)
        limit = search(lambda steps: attempt(steps * step), base[axis] // step, (known or LONGEST) // step)
        if limit.reason:
            limit = _without_padding(trial, alone, axis, step, limit)
        return Found(limit.longest * step, limit.reason, [steps * step for steps in limit.cheap])
    except NoRoomError:
        return Found(base[axis])


def _without_padding(trial: Trial, base: Sizes, axis: str, step: int, limit: Found) -> Found:
    """The limit of inputs without padding: a module may count positions by the ids that are not its padding's."""
    for back in (1, 2):  # one of two ids is not

        def attempt(steps: int, back: int = back) -> str:
            return trial.attempt({**base, axis: steps * step}, back)

        if attempt(limit.longest):
            shorter = search(attempt, base[axis] // step, limit.longest)
            limit = Found(shorter.longest, shorter.reason, shorter.cheap)
    return limit


def of_another(trial: Trial, base: Sizes, axis: str, each: Range, per_token: float) -> Found:
    """The largest size of an axis beside batch and sequence: the example's, or of samples what a search finds."""
    if each.most is not None:
        return Found(each.most, f"the module does not take {each.most + each.step}")
    alone = {**base, BATCH: 1} if BATCH in base else base
    try:
        if not axis.endswith(SAMPLES):
            return _end_of_table(trial, alone, axis, each)
        return search_samples(lambda size: trial.attempt({**alone, axis: size}), base[axis], each, per_token)
    except NoRoomError:
        return Found(base[axis])


def _end_of_table(trial: Trial, base: Sizes, axis: str, each: Range) -> Found:
    """Where a table of positions ends: looked for up to a few times the example, as images grow by the square."""
    most = _FURTHER * max(each.example, base[axis])
    limit = search(
        lambda steps: trial.attempt({**base, axis: steps * each.step}), base[axis] // each.step, most // each.step
    )
    return Found(limit.longest * each.step, limit.reason)
