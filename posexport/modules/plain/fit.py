"""Whether a plain module computes the same with a cache as without, tried in PyTorch.

Shape letters: B batch, T tokens.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.in_parts import differ, in_calls
from posexport.modules.own_decoder import MASK, POSITIONS
from posexport.modules.plain.culprit import culprit
from posexport.modules.plain.decoder import PlainDecoder
from posexport.modules.plain.plan import Noted, Order, Plan, agreed
from posexport.modules.plain.recording import Recording
from posexport.modules.user_module import UserModule, looks_past, sizes_of
from posexport.nn.cached_call import NotCachedError
from posexport.sources.example import axis_sizes, example
from posexport.spec import BATCH, SEQUENCE
from posexport.system.user_code import line_of_error

#: rows, tokens, and how many fewer the runs have that are compared
_ROWS, _LENGTH, _FEWER = 3, 9, (2, 4, 3)
#: tokens of the longest input that is tried: of a module without a limit, and at most
_FAR, _MOST = 1025, 2049
#: numbers from here on are no lengths
_FAR_AWAY = 1 << 31
#: what a logarithm of probabilities may be off by
_OFF = {torch.float64: 1e-8, torch.float32: 1e-3}
#: what padding on the left asks for
_ROW_BY_ROW = (
    "its tokens cannot be numbered row by row; add positions to tokens of the axes [batch, sequence, channels], or let "
    "forward take position_ids"
)
#: what logits of every token ask for, in a module that returns those of the last
_OF_EACH = "it does more with the last token than with each by itself; pick it last, or return the logits of all tokens"


def plan_of(user: UserModule, token: str, size: int, limit: int | None, dtype: torch.dtype, *, of_last: bool) -> Plan:
    """What ``user`` does along the token axis; ``of_last``: it returns logits of one token.

    Raises:
        NotCachedError: what a cache cannot go through.
    """
    longest = min(_LENGTH, limit or _LENGTH)
    lengths = [longest - fewer for fewer in _FEWER if longest > fewer] if longest == _LENGTH else [longest, longest - 1]
    untried = range(_far(limit), limit or _FAR_AWAY)
    return agreed(token, [_noted(user, token, dtype, _inputs(size, n), untried, of_last=of_last) for n in lengths])


def _noted(
    user: UserModule, token: str, dtype: torch.dtype, inputs: tuple[Tensor, Tensor], untried: range, *, of_last: bool
) -> Noted:
    """What is noted in one call with ids and a mask."""
    ids_BT, padded_BT = inputs
    tensors = {token: ids_BT, MASK: padded_BT, POSITIONS: (padded_BT.cumsum(1) - 1).clamp(min=0)}
    takes = [spec.name for spec in user.inputs]
    real_BT = padded_BT != 0 if MASK in takes else torch.ones_like(padded_BT, dtype=torch.bool)
    recording = Recording(Order(real_BT), _OFF[dtype], untried, of_last=of_last)
    return recording.of(user, {name: tensors[name] for name in takes})


def is_causal(user: UserModule) -> bool:
    """Whether an attention of a module that takes more than a decoder does hides later tokens, of an example."""
    if any(looks_past(spec) for spec in user.inputs):
        return True
    tensors = example(list(user.inputs), axis_sizes(user.inputs))
    for spec in user.inputs:
        if "pos" in spec.name and spec.role == "tokens" and spec.axes[-1:] == [SEQUENCE]:
            tensors[spec.name] = torch.arange(tensors[spec.name].shape[-1]).expand_as(tensors[spec.name])
    sizes = sizes_of(user.inputs, tensors)
    real_BT = torch.ones(sizes.get(BATCH, 1), sizes.get(SEQUENCE, 1), dtype=torch.bool)
    try:
        return bool(Recording(Order(real_BT), _OFF[torch.float32], range(0), of_last=False).of(user, tensors).causal)
    except PosexportError:  # what it took before was another example
        return False


def fitted(make: Callable[[Plan], PlainDecoder], plan: Plan, dtype: torch.dtype) -> Plan:
    """``plan``, with the windows that long inputs show, by which ``make`` gives a decoder that computes the same.

    Raises:
        NotCachedError: there is none.
    """
    try:
        check(make(plan), dtype)
    except NotCachedError:
        windows = _windows(make(plan), dtype)
        if not any(windows):
            raise
        plan = replace(plan, windows=windows)
        check(make(plan), dtype)
    return plan


def _windows(decoder: PlainDecoder, dtype: torch.dtype) -> list[int | None]:
    """The window of every attention, the same at two lengths beyond them all; none where another thing is in the way.

    Raises:
        NotCachedError: a window depends on the length.
    """
    plan, size = decoder.plan_of_calls, decoder.inputs[0].size or 1

    def noted(length: int) -> Noted:
        ids_1T = torch.zeros((1, length), dtype=torch.int64).random_(size, generator=torch.Generator().manual_seed(1))
        return _noted(decoder.own, plan.token, dtype, (ids_1T, torch.ones_like(ids_1T)), range(0), of_last=False)

    longest = _far(decoder.limits.max_length)
    first = noted(longest)
    largest = max((window or 0 for window, _ in first.windows), default=0)
    between = (largest + longest) // 2
    if first.refused or not largest < between < longest:
        return []
    for (window, line), (other, _) in zip(first.windows, noted(between).windows, strict=True):
        if window != other:
            raise NotCachedError(
                f"its attention sees {window or longest} of {longest} tokens and {other or between} of {between}: a "
                f"window must have one size ({line})"
            )
    return [window for window, _ in first.windows]


def check(decoder: PlainDecoder, dtype: torch.dtype) -> None:
    """Compare logits with a cache and without.

    Raises:
        NotCachedError: they differ, or padding on the left changes them.
    """
    limit = decoder.limits.max_length
    length = min(_LENGTH, limit or _LENGTH)
    ids_BT, padded_BT = _inputs(decoder.inputs[0].size or 1, length)
    parts = (length - 2, 1, 1) if length == _LENGTH else (1,) * length
    with torch.no_grad():
        try:
            reason = _misfit(decoder, ids_BT, parts, dtype)
        except PosexportError as err:  # its own forward took the same
            line = line_of_error(err)
            said = _OF_EACH if decoder.plan_of_calls.of_last else _ROW_BY_ROW
            reason = f"{said}{f' ({line})' if line else ''}"
        if not reason and length == _LENGTH:
            reason = _misfit_far(decoder, _far(limit), dtype)
        if not reason and not _hides_padding(decoder, ids_BT, padded_BT, parts, dtype):
            reason = f"padding on the left changes its logits: {_ROW_BY_ROW}"
    if reason:
        raise NotCachedError(reason)


def _misfit(decoder: PlainDecoder, ids_BT: Tensor, parts: tuple[int, ...], dtype: torch.dtype) -> str:
    whole_BT = torch.ones_like(ids_BT)
    want = decoder.plain(ids_BT, whole_BT)
    if differ(decoder(ids_BT, whole_BT)[0], want, whole_BT, dtype):
        return "its logits are others when its attention and positions are those of a decoder with a cache"
    if differ(in_calls(decoder, ids_BT, whole_BT, parts), want, whole_BT, dtype):
        line = culprit(decoder, ids_BT)
        return (
            "read in parts it gives other logits than read at once, so something beside attention looks at other "
            f"tokens or counts them{f' ({line})' if line else ''}"
        )
    return ""


def _far(limit: int | None) -> int:
    return _FAR if limit is None else min(limit, _MOST)


def _misfit_far(decoder: PlainDecoder, length: int, dtype: torch.dtype) -> str:
    """Windows, clips and schedules by the length look causal and plain in a short input."""
    ids_1T = torch.randint(0, decoder.inputs[0].size or 1, (1, length), generator=torch.Generator().manual_seed(1))
    whole_1T, since = torch.ones_like(ids_1T), length - 1 if decoder.plan_of_calls.of_last else 0
    with torch.inference_mode():
        want = decoder.plain(ids_1T, whole_1T, since)
        for parts in ((length,), (length - 1, 1), (length // 2, length - length // 2)):
            try:
                got = in_calls(decoder, ids_1T, whole_1T, parts)
            except PosexportError as err:  # its own forward took the same
                return f"forward makes other calls at {parts[0]} tokens than in short inputs ({line_of_error(err)})"
            if differ(got[:, since:], want, whole_1T[:, since:], dtype):
                why = line_in_the_way(decoder, ids_1T)
                return f"at {length} tokens, and not in short inputs, its logits are others than with a KV cache: {why}"
    return ""


def line_in_the_way(decoder: nn.Module, ids_BT: Tensor) -> str:
    """Why a cache cannot go through the module at a length at which its own forward gives other logits."""
    assert isinstance(decoder, PlainDecoder)
    plan, dtype = decoder.plan_of_calls, next(decoder.parameters()).dtype
    inputs = (ids_BT, torch.ones_like(ids_BT))
    noted = _noted(decoder.own, plan.token, dtype, inputs, range(0), of_last=False)
    return noted.refused[0] if noted.refused else "it has a clip or a branch that depends on the length"


def _hides_padding(
    decoder: PlainDecoder, ids_BT: Tensor, padded_BT: Tensor, parts: tuple[int, ...], dtype: torch.dtype
) -> bool:
    """Whether rows that are padded on the left have the logits that the module itself gives them alone."""
    for got in (decoder(ids_BT, padded_BT)[0], in_calls(decoder, ids_BT, padded_BT, parts)):
        for row, mask_T in enumerate(padded_BT):
            alone_1T = ids_BT[row, mask_T != 0][None]
            whole_1T = torch.ones_like(alone_1T)
            if differ(got[row, mask_T != 0][None], decoder.plain(alone_1T, whole_1T), whole_1T, dtype):
                return False
    return True


def _inputs(size: int, length: int) -> tuple[Tensor, Tensor]:
    """Ids, and a mask of rows that are padded on the left more and more."""
    ids_BT = torch.randint(0, size, (_ROWS, length), generator=torch.Generator().manual_seed(0))
    padded_BT = torch.arange(length) >= torch.arange(_ROWS)[:, None].clamp(max=length - 1)
    return ids_BT, padded_BT.to(torch.int64)
