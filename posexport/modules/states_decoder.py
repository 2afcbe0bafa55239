"""A user's decoder without attention: its causal convolutions and recurrent layers keep states between tokens.

All else must treat every token by itself, which is tried before anything is exported.

Shape letters: B batch, T new tokens, S past and new tokens.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

import msgspec
import torch
from torch import Tensor

from posexport.base.spec import InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.models.cached_decoder import Decoding, StateTensors
from posexport.models.forward_decoder import MASK, POSITIONS
from posexport.modules.around_forward import AroundForward
from posexport.modules.decoder_facts import as_source, limited, small, tokens_of
from posexport.modules.in_parts import check_calls
from posexport.modules.kept_layers import keeping, stateful_layers
from posexport.modules.user_module import UserModule
from posexport.nn.cached_call import NotCachedError
from posexport.nn.caching import Caching, KeysAndValues, Reach
from posexport.nn.layer_states import KINDS, NoKeysCache, States
from posexport.sources.source import Source
from posexport.sources.torch_fixes.module_precision import in_precision

#: tokens of the call that shows the shapes of the states
_LENGTH = 5


class LayerStatesDecoder(AroundForward):
    """A user's module as a decoder with states.

    ``shapes``: of the states by kind, without the batch (`posexport.nn.layer_states`).
    """

    #: the truth of a proof is compared with the author's forward of each row alone
    judged_by_forward = True
    padding_between = True
    #: nothing has keys; a capacity has no slots
    caching: Caching = Caching(NoKeysCache())

    def __init__(
        self,
        user: UserModule,
        tokens: InputSpec,
        vocab: int,
        limits: LengthContract,
        shapes: Mapping[str, Sequence[Sequence[int]]],
    ) -> None:
        super().__init__(user, tokens, vocab, limits)
        self.shapes = shapes

    @property
    def encodings(self) -> list[Encoding]:
        return [NoPE()]

    @property
    def decoding(self) -> Decoding:
        return replace(super().decoding, states=StateTensors(self.shapes))

    def decode(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, positions_BT: Tensor | None
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """The logits of the new tokens; no keys and values."""
        mask_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        at = Reach.by_mask(mask_BS, ids_BT.shape[1], self.caching, positions_BT)
        return self._logits(ids_BT, mask_BS[:, at.queries.slots_T], at), []

    def forward(  # type: ignore[override]  # more named inputs
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        past_conv: Sequence[Tensor] = (),
        past_recurrent: Sequence[Tensor] = (),
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """Lists of states may also be one list, or inputs by their names."""
        carried = chain(past_key_values, past_conv, past_recurrent, named.values())
        past = {kind: list(islice(carried, len(self.shapes.get(kind, ())))) for kind in KINDS}
        states = States(past if any(past.values()) else None)
        mask_BS = self.caching.cache.mask(input_ids, attention_mask, None)
        with keeping(states, mask_BS[:, -input_ids.shape[1] :].to(torch.int64)):
            logits, _ = self.decode(input_ids, mask_BS, None, position_ids)
        return (logits, *states.tensors)


def by_states(source: Source, user: UserModule) -> tuple[Source, str]:
    """The source of a module with layers that keep states, and their names for a remark.

    Raises:
        NotCachedError: with states its logits are others than without.
    """
    tokens, vocab = tokens_of(source, user)
    shapes = _shapes(user, tokens.name)
    decoder, remarks = limited(source, lambda limits: LayerStatesDecoder(user, tokens, vocab, limits, shapes).eval())
    # compare logits with and without states, in float64 if memory allows a copy
    trial, dtype = decoder, torch.float32
    if small(user):
        trial, dtype = copy.deepcopy(decoder), torch.float64
        in_precision(trial, dtype)
    check_calls(trial, dtype, "states", "those layers")
    counts = Counter(type(layer).__name__ for layer in stateful_layers(user.module))
    states = msgspec.structs.replace(as_source(source, decoder, remarks), encoding=None)
    return states, ", ".join(f"{count} {name}" for name, count in counts.items())


def _shapes(user: UserModule, ids: str) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of the states that a call leaves."""
    ones = torch.ones((1, _LENGTH), dtype=torch.int64)
    states, values = States(None), {ids: torch.zeros_like(ones), MASK: ones, POSITIONS: torch.arange(_LENGTH)[None]}
    with torch.no_grad(), keeping(states, ones):
        user(**{spec.name: values[spec.name] for spec in user.inputs})
    if not states.tensors:
        raise NotCachedError("its forward calls no layer that keeps a state")
    return states.shapes
