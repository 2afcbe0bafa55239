"""The source of a transformers causal language model with a KV cache and states.

If transformers' attention calls the functions of `posexport.through.attention`, these functions keep the cache, and the
logits are checked against the model's forward. Models with custom attention get their cache in the graph
(`posexport.modules.inserted_cache`).
"""

import copy
from typing import cast

import msgspec
import torch
from torch import Tensor

from posexport.base.spec import LengthContract
from posexport.errors import PosexportError
from posexport.graph.passes.graph_pass import NotInsertedError
from posexport.models.forward_decoder import POSITIONS
from posexport.modules.decoder_facts import TASK, as_source, limited, small, tokens_of
from posexport.modules.in_parts import check_calls
from posexport.modules.inserted_cache import by_pass
from posexport.modules.user_module import UserModule
from posexport.nn.cached_call import NotCachedError
from posexport.proof.reduced.reduction import reduction_of
from posexport.sources.lazy_parameters import materialize, with_values
from posexport.sources.source import Source
from posexport.sources.torch_fixes.module_precision import in_precision
from posexport.through.decoder import ThroughDecoder
from posexport.through.inputs import forward_parameters
from posexport.through.recorded import recorded
from posexport.through.states_decoder import StatesDecoder

#: tokens of the long input at which a large model is compared; its proof compares longer ones
_FAR_OF_LARGE = 129


def decoder_source(source: Source, depth: int, task: str = TASK) -> Source:
    """Add a KV cache to the source of a causal language model with ``depth`` layers; ``task`` is for messages.

    Raises:
        PosexportError: the model cannot have a KV cache.
    """
    user = source.module
    assert isinstance(user, UserModule)
    try:
        try:
            return _called(source, user, depth)
        except NotCachedError as err:
            if task != TASK:
                raise
            return _inserted(source, user, err)
    except NotCachedError as err:
        raise PosexportError(
            f"{source.name} cannot be converted for {task} through transformers: {err}"
            + ("; the task features converts its hidden states, without a KV cache" if task == TASK else "")
        ) from err


def _inserted(source: Source, user: UserModule, reason: NotCachedError) -> Source:
    """The source with a cache that a graph pass inserts; ``reason``: why calls of attention cannot keep the cache."""
    materialize(user.parameters())
    try:
        cached, _ = by_pass(source, user, with_positions=_takes_positions(user))
    except (NotInsertedError, NotCachedError) as err:
        raise NotCachedError(f"{reason}: {err}") from err
    return msgspec.structs.replace(cached, encoding=None, encodings=[])


def _takes_positions(user: UserModule) -> bool:
    return POSITIONS in forward_parameters(user.module.model)


def _called(source: Source, user: UserModule, depth: int) -> Source:
    """The source with a cache that posexport's attention functions keep.

    Raises:
        NotCachedError: a layer does not call these functions, or the logits differ from those without a cache.
    """
    # record the attention and the states of every layer
    layers, kept = recorded(user, source.limits.max_length)
    if not kept.tensors and not _takes_positions(user):
        raise NotCachedError(f"{type(user.module.model).__name__} takes no {POSITIONS}")
    if not layers and not kept.tensors:
        raise NotCachedError("its attention is code of its own, which no KV cache of posexport's goes through")
    if len(layers) < depth and not kept.tensors:
        raise NotCachedError(
            f"posexport saw the attention of {len(layers)} of its {depth} layers; a layer without "
            "attention keeps a state of its own"
        )
    # the longest input that the decoder with a cache accepts
    tokens, vocab = tokens_of(source, user)

    def make(limits: LengthContract) -> ThroughDecoder:
        if not kept.tensors:
            return ThroughDecoder(user, layers, tokens, vocab, limits).eval()
        return StatesDecoder(user, layers, tokens, vocab, limits, kept.shapes).eval()

    decoder, remarks = limited(source, make)
    result = msgspec.structs.replace(as_source(source, decoder, remarks), encoding=None)
    # compare logits with and without the cache, in float64 if memory allows a copy, else of a few layers
    if small(user):
        trial, dtype = copy.deepcopy(decoder), torch.float64
        in_precision(trial, dtype)
        check_calls(trial, _narrowest(trial))
    else:
        # two layers of each kind: those of one kind could have each other's cache
        few = next(
            (each for each in (reduction_of(result, each=2), reduction_of(result)) if not isinstance(each, str)), None
        )
        trial = decoder if few is None else cast(ThroughDecoder, few.source.module)
        with with_values(trial.parameters()):
            check_calls(trial, torch.float32, far=_FAR_OF_LARGE)
    return result


def _narrowest(decoder: ThroughDecoder) -> torch.dtype:
    """The narrowest dtype inside a float64 decoder: routers of experts always compute in float32."""
    seen: set[torch.dtype] = set()

    def note(_: object, __: object, answer: object) -> None:
        parts = answer if isinstance(answer, tuple) else (answer,)
        seen.update(x.dtype for x in parts if isinstance(x, Tensor) and x.is_floating_point())

    hooks = [part.register_forward_hook(note) for part in decoder.user.modules()]
    ids_1T = torch.zeros((1, 1), dtype=torch.int64)
    with torch.no_grad():
        decoder.uncached_logits(ids_1T, torch.ones_like(ids_1T))
    for hook in hooks:
        hook.remove()
    return torch.float32 if torch.float32 in seen else torch.float64
