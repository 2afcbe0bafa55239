"""Gives a user's module a KV cache where it is a decoder.

Only its attention may look at other tokens, which is checked by calls before anything is exported. A module without
`posexport.nn.Attention` is analysed by `posexport.modules.plain`.

Shape letters: B batch, T new tokens.
"""

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import torch
from torch import nn

from posexport.encodings.alibi import is_published
from posexport.errors import PosexportError
from posexport.modules.axes.largest import LONGEST, search
from posexport.modules.in_parts import differ, in_calls
from posexport.modules.own_decoder import IDS, MASK, POSITIONS, OwnDecoder
from posexport.modules.plain.decoder import PlainDecoder
from posexport.modules.plain.fit import fitted, is_causal, plan_of
from posexport.modules.plain.plan import NotCausalError, Plan
from posexport.modules.user_module import PAST_IS_OURS, UserModule, looks_past, returning
from posexport.nn import Attention
from posexport.nn.cached_call import CachedCall, NotCachedError, cached_call
from posexport.nn.caching import Caching, Reach
from posexport.sources import memory_mapped
from posexport.sources.source import Source, spec_of
from posexport.spec import BATCH, SEQUENCE, InputSpec, LengthContract, OutputSpec
from posexport.system.user_code import raised
from posexport.torch_fixes.module_precision import in_precision

TASK = "text-generation"
#: rows and tokens of the calls that check a module before it is exported
_ROWS, _LENGTH = 3, 9

_D = TypeVar("_D", "OwnDecoder", "PlainDecoder")


def with_cache(source: Source, task: str | None) -> Source:
    """The source with a KV cache, where its module is a decoder; otherwise as it is.

    ``task``: ``text-generation`` requires a cache, ``features`` leaves it out. None: a module with causal attention
    gets one if it returns logits over the rows of its embedding.

    Raises:
        PosexportError: why the module cannot have a cache, in one sentence.
    """
    user = source.module
    if not isinstance(user, UserModule) or task == "features":
        return source
    if task not in (None, TASK):
        raise PosexportError(f"{source.name} is a module of your own: the task must be {TASK} or features, got {task}")
    if task is None and not _is_vocabulary(source, user.module):
        return source
    # whether it is a decoder, and why not
    layers = any(isinstance(submodule, Attention) and submodule.causal for submodule in user.module.modules())
    reason, causal = _unfit(source, layers=layers), layers
    if reason:
        causal = layers or (task is None and is_causal(user))
    else:
        alone, others = _logits_alone(source)
        try:
            decoder, attentions = (_decoder if layers else _plain)(alone, returning(user, alone.outputs))
            causal = True
        except NotCachedError as err:
            reason, causal = str(err), not isinstance(err, NotCausalError)
        if others and not reason:
            reason = f"beside logits it returns {_shown(others)}; let it return logits alone, or these in training only"
    # the decoder, a refusal, or the source with a remark
    if not reason:
        remark = f"converted for {TASK}: a KV cache goes through its {attentions}; the task features leaves it out"
        return decoder if task else msgspec.structs.replace(decoder, remarks=[*decoder.remarks, remark])
    if task:
        raise PosexportError(f"{source.name} cannot be converted for {TASK}: {reason}")
    remark = f"converted for features, without a KV cache: {reason}"
    return msgspec.structs.replace(source, remarks=[*source.remarks, remark]) if causal else source


def _unfit(source: Source, *, layers: bool) -> str:
    """Returns why inputs or outputs do not fit a decoder; empty if they do.

    ``layers``: the module has layers of `posexport.nn.Attention`; without them ids may have any name.
    """
    names = [spec.name for spec in source.inputs]
    if past := [spec.name for spec in source.inputs if looks_past(spec)]:
        return f"the example has {', '.join(past)}: {PAST_IS_OURS}"
    ids = {spec.name for spec in source.inputs if spec.role == "tokens"} - {POSITIONS}
    if len(ids) != 1 or (layers and ids != {IDS}) or not set(names) <= {*ids, MASK, POSITIONS}:
        said = f"its inputs must be {IDS}, and may be {MASK} and {POSITIONS}; got {', '.join(names)}"
        lengths = {axis for spec in source.inputs for axis in spec.axes if isinstance(axis, str)} - {BATCH}
        if len(lengths) > 1:  # an encoder's and its decoder's
            return said
        return f"{said}: leave out what forward takes None for, and call positions {POSITIONS}"
    if any(spec.axes != [BATCH, SEQUENCE] or spec.dtype != "int64" for spec in source.inputs):
        return f"its inputs must be int64 [{BATCH}, {SEQUENCE}]"
    axes = source.outputs[0].axes
    if not layers and _of_last(source):
        return ""
    if len(axes) != 3 or axes[:2] != [BATCH, SEQUENCE] or not isinstance(axes[2], int):
        return f"it must return logits [{BATCH}, {SEQUENCE}, vocabulary] alone, got {_shown(source.outputs)}"
    return ""


def _shown(outputs: Sequence[OutputSpec]) -> str:
    return "; ".join(f"{spec.name} [{', '.join(map(str, spec.axes))}]" for spec in outputs)


def _logits_alone(source: Source) -> tuple[Source, list[OutputSpec]]:
    """The source with its first output alone, and its other outputs that are no keys and values."""
    logits, *further_outputs = source.outputs
    assert isinstance(source.module, UserModule)
    no_cache = [
        spec
        for spec in further_outputs
        if len(spec.axes) < 4 or spec.axes.count(SEQUENCE) != 1 or not isinstance(spec.axes[-1], int)
    ]
    remarks = list(source.remarks)
    if len(no_cache) < len(further_outputs):
        names = ", ".join(spec.name for spec in further_outputs if spec not in no_cache)
        remarks.append(f"keys and values that its forward returns ({names}) are those of the bundle's own cache")
    module = returning(source.module, [logits])
    return msgspec.structs.replace(source, module=module, outputs=[logits], remarks=remarks), no_cache


def _of_last(source: Source) -> bool:
    """Whether the first output may be the logits of the last token alone, [B, 1, V] or [B, V]."""
    axes, vocab = source.outputs[0].axes, source.outputs[0].axes[-1:]
    return axes in ([BATCH, 1, *vocab], [BATCH, *vocab]) and isinstance(vocab[0], int)


def _is_vocabulary(source: Source, module: nn.Module) -> bool:
    """Whether the first output is called logits, or has as many channels as the embedding of the ids has rows.

    A table of positions may have as many rows as there are hidden channels.
    """
    logits, rows = source.outputs[0], _rows(module)
    called = logits.name == "logits" and not _of_last(source)  # a classifier's output is called logits, too
    ids = {spec.size for spec in source.inputs if spec.role == "tokens" and spec.name != POSITIONS} & rows
    return called or (bool(logits.axes) and logits.axes[-1] in (ids or rows))


def _rows(module: nn.Module) -> set[int]:
    return {submodule.num_embeddings for submodule in module.modules() if isinstance(submodule, nn.Embedding)}


def _called(user: UserModule) -> list[str]:
    """The paths of the attention layers, in the order in which forward calls them."""
    module = copy.deepcopy(user.module) if small(user) else user.module
    mask_11 = torch.ones((1, 1), dtype=torch.int64)
    call = CachedCall(Reach.by_mask(mask_11, 1, Caching()), mask_11, None)
    tensors = {IDS: torch.zeros_like(mask_11), MASK: mask_11, POSITIONS: call.at.queries.ids_BT}
    with torch.no_grad(), cached_call(call):
        module(**{spec.name: tensors[spec.name] for spec in user.inputs})
    if not call.layers:
        raise NotCachedError("forward calls no posexport.nn.Attention")
    paths = {id(submodule): path for path, submodule in module.named_modules()}
    return [paths[id(layer)] for layer in call.layers]


def small(module: nn.Module) -> bool:
    """Whether a module is small enough for a copy in float64, whatever memory is free."""
    return memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE


def _decoder(source: Source, user: UserModule) -> tuple[Source, str]:
    """The source of a module with `posexport.nn.Attention`, and the attentions with a cache as a string."""
    paths = _called(user)
    tokens, vocab = tokens_of(source, user)
    decoder, remarks = limited(source, lambda limits: OwnDecoder(user, paths, tokens, vocab, limits).eval())
    if reason := _misfit(decoder):
        raise PosexportError(
            f"{source.name} cannot have a KV cache: {reason}; or convert it for the task features, without a cache"
        )
    return as_source(source, decoder, remarks), f"{len(paths)} causal attention layers"


def _plain(source: Source, user: UserModule) -> tuple[Source, str]:
    """The source of a module of PyTorch operations alone, and the attentions with a cache as a string."""
    tokens, vocab = tokens_of(source, user)
    assert tokens.size is not None
    wide = small(user)
    trial, dtype = user, torch.float64 if wide else torch.float32
    if wide:
        trial = copy.deepcopy(user)
        in_precision(trial, torch.float64)
    try:
        limit, of_last = source.limits.max_length, _of_last(source)
        plan = plan_of(trial, tokens.name, tokens.size, limit, dtype, of_last=of_last)
    except NotCachedError:
        raise
    except PosexportError as err:  # an error of the module, in a call that only a decoder must accept
        raise NotCausalError(str(err)) from err
    if of_last and not plan.of_last:
        raise NotCachedError(
            "the last token that it returns logits of is not picked from [batch, sequence, channels] as x[:, -1], "
            "x[:, -1:] or x[:, [-1]]; pick it so, or return the logits of all tokens"
        )
    tokens = msgspec.structs.replace(tokens, name=IDS)
    decoder, remarks = limited(source, lambda limits: PlainDecoder(user, plan, tokens, vocab, limits).eval())
    lengths = decoder.limits
    plan = fitted(lambda plan: PlainDecoder(trial, plan, tokens, vocab, lengths).eval(), plan, dtype)
    decoder = PlainDecoder(user, plan, tokens, vocab, lengths).eval()
    if of_last:
        remarks.append("its forward returns the logits of the last token, the bundle those of every new token")
    cached = as_source(source, decoder, remarks)
    own_slopes = any(not is_published(slopes) for slopes in plan.slopes if slopes)
    if own_slopes or not any(encoding.hooks for encoding in decoder.encodings):
        cached = msgspec.structs.replace(cached, encoding=None)
    return cached, f"{len(plan.shapes)} causal attentions{_with_terms(plan)}"


def _with_terms(plan: Plan) -> str:
    windows, biased = [window for window in plan.windows if window], sum(bool(slopes) for slopes in plan.slopes)
    sizes = " and ".join(map(str, sorted(set(windows))))
    within = f", {len(windows)} of them in windows of {sizes} tokens" if windows else ""
    own = "" if all(is_published(slopes) for slopes in plan.slopes if slopes) else " of the module's own slopes"
    return f"{within}, {biased} of them with ALiBi{own}" if biased else within


def tokens_of(source: Source, user: UserModule) -> tuple[InputSpec, int]:
    """The input of ids, and the size of the vocabulary."""
    vocab = source.outputs[0].axes[-1]
    assert isinstance(vocab, int)
    tokens = next(spec for spec in source.inputs if spec.role == "tokens" and spec.name != POSITIONS)
    if vocab in _rows(user.module):  # an example need not hold the last id
        tokens = msgspec.structs.replace(tokens, size=vocab)
    return tokens, vocab


def limited(source: Source, make: Callable[[LengthContract], _D]) -> tuple[_D, list[str]]:
    """A decoder within its limits, and the source's remarks, with one where ``position_ids`` limit its inputs."""
    decoder, remarks = make(source.limits), list(source.remarks)
    if any(spec.name == POSITIONS for spec in source.inputs):
        limits, remarks = _numbered(decoder, remarks)
        decoder = make(limits)
    return decoder, remarks


def as_source(source: Source, decoder: "OwnDecoder | PlainDecoder", remarks: list[str]) -> Source:
    limit = decoder.limits.max_length
    return msgspec.structs.replace(
        source,
        **spec_of(decoder, TASK).facts,
        module=decoder,
        promises=decoder.promises,
        further=[length for length in source.further if limit is None or length <= limit],
        remarks=remarks,
    )


def _numbered(decoder: OwnDecoder | PlainDecoder, remarks: list[str]) -> tuple[LengthContract, list[str]]:
    """The limits of a module with ``position_ids``, which a table of the module may limit further."""
    limits = decoder.limits

    def attempt(length: int) -> str:
        ids_1T = torch.zeros((1, length), dtype=torch.int64)
        try:
            with torch.no_grad():
                decoder.plain(ids_1T, torch.ones_like(ids_1T), since=length - 1)
        except PosexportError as err:
            return raised(err.__cause__ or err)
        return ""

    try:
        end = search(attempt, 1, limits.max_length or LONGEST)
    except MemoryError:  # how far it may go is not known
        return limits, remarks
    if end.limit is None or end.limit == limits.max_length:
        return limits, remarks
    remark = (
        f"inputs of at most {end.limit} tokens are accepted, longer ones are refused: with the {POSITIONS} of "
        f"{end.limit + 1} tokens the module raised {end.reason}"
    )
    boundaries = sorted({*(b for b in limits.boundaries if b < end.limit), end.limit})
    return msgspec.structs.replace(limits, max_length=end.limit, boundaries=boundaries), [*remarks, remark]


def _misfit(decoder: OwnDecoder) -> str:
    """Why the module computes something else with a cache than without; empty where it computes the same."""
    limit, size = decoder.limits.max_length or _LENGTH, decoder.inputs[0].size or 1
    length = min(_LENGTH, limit)
    checked, dtype = decoder, torch.float32
    if small(decoder):
        checked, dtype = copy.deepcopy(decoder), torch.float64
        in_precision(checked, torch.float64)
    ids_BT = torch.randint(0, size, (_ROWS, length), generator=torch.Generator().manual_seed(0))
    whole_BT = torch.ones_like(ids_BT)
    # rows of different lengths, each at its end
    padded_BT = (torch.arange(length) >= torch.arange(_ROWS)[:, None].clamp(max=length - 1)).to(torch.int64)

    with torch.no_grad():
        for mask_BT in (whole_BT, padded_BT) if checked.takes_mask else (whole_BT,):
            cached = checked(ids_BT, mask_BT)[0]
            if differ(cached, checked.plain(ids_BT, mask_BT), mask_BT, dtype):
                if mask_BT is whole_BT:
                    return "its logits are others when its attention layers take their positions from the cache"
                return (
                    "padding on the left changes its logits: hand the attention_mask of forward on to every "
                    "posexport.nn.Attention and posexport.nn.InputEncoding"
                )
        if length > 2 and not decoder.limits.length_dependent:
            parts = (length - 2, 1, 1)
            if differ(in_calls(checked, ids_BT, whole_BT, parts), checked(ids_BT, whole_BT)[0], whole_BT, dtype):
                return (
                    "read in parts it gives other logits than read at once, so something beside posexport.nn.Attention "
                    "looks at other tokens or counts them (a convolution, positions from torch.arange); number tokens "
                    "with posexport.nn.InputEncoding, or let forward take position_ids"
                )
    return ""
