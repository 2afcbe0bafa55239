"""Gives a user's module a KV cache where it is a decoder.

Only its attention may look at other tokens. The cache is inserted into the graph (`posexport.modules.inserted_cache`);
layers whose encoding depends on the length of a call keep one themselves (`posexport.modules.own_decoder`).

Shape letters: B batch, T new tokens.
"""

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, OutputSpec
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.graph.passes.graph_pass import NotCausalError, NotInsertedError
from posexport.models.forward_decoder import IDS, MASK, POSITIONS
from posexport.modules.decoder_facts import TASK, rows_of, table_rows_of
from posexport.modules.inserted_cache import by_pass
from posexport.modules.kept_layers import stateful_layers
from posexport.modules.own_decoder import by_layers
from posexport.modules.states_decoder import by_states
from posexport.modules.user_module import PAST_IS_OURS, UserModule, looks_past, returning
from posexport.nn import Attention
from posexport.nn.cached_call import NotCachedError
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.sources.torch_fixes.module_state import with_state_kept


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
    layers = any(isinstance(submodule, Attention) and submodule.causal for submodule in user.module.modules())
    # a trace would show that tokens see later ones, too
    if task is None and (not _is_vocabulary(source, user.module) or (not layers and looks_ahead(user))):
        return source
    # whether it is a decoder, and why not
    reason, causal = _unfit(source, layers=layers), layers
    if reason:
        causal = layers or (task is None and is_causal(user))
    else:
        alone, others = _logits_alone(source)
        try:
            by_length = any(isinstance(part, Encoding) and part.length_dependent for part in user.module.modules())
            make = by_layers if layers and by_length else by_pass
            decoder, keeps = _with_states(alone) or _with_keys(*make(alone, returning(user, alone.outputs)))
            causal = True
        except NotCausalError as err:
            reason, causal = str(err), layers
        except (NotCachedError, NotInsertedError) as err:
            reason = str(err)
            causal = layers or getattr(err, "causal", False) or is_causal(user)
        if others and not reason:
            reason = f"beside logits it returns {_shown(others)}; let it return logits alone, or these in training only"
    # the decoder, a refusal, or the source with a remark
    if not reason:
        remark = f"converted for {TASK}: {keeps}; the task features leaves it out"
        return decoder if task else msgspec.structs.replace(decoder, remarks=[*decoder.remarks, remark])
    if task:
        raise PosexportError(f"{source.name} cannot be converted for {TASK}: {reason}")
    remark = f"converted for features, without a KV cache: {reason}"
    return msgspec.structs.replace(source, remarks=[*source.remarks, remark]) if causal else source


def _with_keys(source: Source, attentions: str) -> tuple[Source, str]:
    return source, f"a KV cache goes through its {attentions}"


def _with_states(source: Source) -> tuple[Source, str] | None:
    """The source with states of its convolutions and recurrent layers, and a remark; None where these are not all."""
    user = source.module
    assert isinstance(user, UserModule)
    if not stateful_layers(user.module) or _of_last(source):
        return None
    try:
        decoder, layers = by_states(source, user)
    except PosexportError:  # attention, or a convolution that is not causal: the graph says where
        return None
    return decoder, f"a state between tokens goes through its {layers}"


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
            return f"{said}: a decoder that reads the output of an encoder gets no cache"
        return f"{said}: leave out what forward takes None for, and call positions {POSITIONS}"
    if others := [spec for spec in source.inputs if spec.axes != [BATCH, SEQUENCE] or spec.dtype != "int64"]:
        got = "; ".join(f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.axes))}]" for spec in others)
        return f"its inputs must be int64 [{BATCH}, {SEQUENCE}], one id for each token; got {got}"
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

    A table of positions may have as many rows as there are hidden channels. The table of the ids may be a parameter.
    """
    logits, rows = source.outputs[0], rows_of(module)
    called = logits.name == "logits" and not _of_last(source)  # a classifier's output is called logits, too
    sizes = {spec.size for spec in source.inputs if spec.role == "tokens" and spec.name != POSITIONS}
    ids = sizes & (rows | table_rows_of(module))
    return called or (bool(logits.axes) and logits.axes[-1] in (ids or rows))


def is_causal(user: UserModule) -> bool:
    """Whether the first output of a module, for tokens of an example, does not depend on later tokens."""
    if any(looks_past(spec) for spec in user.inputs):
        return True
    outputs = _with_another_last(user)
    return outputs is not None and _earlier_agree(user, *outputs) and not torch.equal(*outputs)


def looks_ahead(user: UserModule) -> bool:
    """Whether the first output of a module, for tokens of an example, depends on later tokens."""
    outputs = _with_another_last(user)
    return outputs is not None and not _earlier_agree(user, *outputs)


def _with_another_last(user: UserModule) -> tuple[Tensor, Tensor] | None:
    """The first output for tokens of an example, and with another last one; None where it has none for each token.

    Ids are [B, T] or of several codebooks, [B, K, T].
    """
    tensors = example(list(user.inputs), axis_sizes(user.inputs))
    ids = next((spec for spec in user.inputs if spec.role == "tokens" and spec.axes[-1] == SEQUENCE), None)
    if ids is None or SEQUENCE not in user.outputs[0].axes:
        return None
    shape, size = tensors[ids.name].shape, ids.size or 1
    first = torch.arange(shape.numel()).reshape(shape) % size
    other = first.clone()
    other[..., -1] = (other[..., -1] + 1) % size
    try:
        with torch.no_grad(), with_state_kept(user.module):
            return user(**tensors | {ids.name: first})[0], user(**tensors | {ids.name: other})[0]
    except PosexportError:  # what it took before was another example
        return None


def _earlier_agree(user: UserModule, first: Tensor, other: Tensor) -> bool:
    """Whether two outputs are equal at all tokens but the last."""
    axis = user.outputs[0].axes.index(SEQUENCE)
    kept, changed = (output.narrow(axis, 0, output.shape[axis] - 1) for output in (first, other))
    return torch.allclose(kept, changed, rtol=1e-4, atol=1e-5)
