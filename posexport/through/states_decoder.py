"""A causal language model of transformers with states between tokens, and a KV cache if layers have attention."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from torch import Tensor

from posexport.base.spec import InputSpec, LengthContract
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.models.cached_decoder import Decoding, StateTensors, flat, pairs
from posexport.models.forward_decoder import POSITIONS
from posexport.modules.user_module import UserModule
from posexport.nn.caching import Caching
from posexport.nn.layer_states import KINDS, NoKeysCache, States
from posexport.through import states
from posexport.through.decoder import ThroughDecoder
from posexport.through.inputs import forward_parameters
from posexport.through.planned_call import Layer


class StatesDecoder(ThroughDecoder):
    """``shapes``: of the states by kind, without the batch (`posexport.through.states`)."""

    #: the truth of a proof is compared with transformers' forward of each row alone
    judged_by_forward = True
    padding_between = True

    def __init__(
        self,
        user: UserModule,
        layers: list[Layer],
        tokens: InputSpec,
        vocab: int,
        limits: LengthContract,
        shapes: Mapping[str, Sequence[Sequence[int]]],
    ) -> None:
        super().__init__(user, layers, tokens, vocab, limits)
        self.shapes = shapes
        if POSITIONS not in forward_parameters(user.module.model):
            self._takes -= {POSITIONS}
        if not layers:
            self.caching = Caching(NoKeysCache())

    def _plan(self, layers: list[Layer], kept: States) -> None:
        super()._plan(layers, kept)
        self.shapes = kept.shapes

    @property
    def encodings(self) -> list[Encoding]:
        return super().encodings or [NoPE()]

    @property
    def decoding(self) -> Decoding:
        return replace(super().decoding, states=StateTensors(self.shapes))

    def forward(  # type: ignore[override]  # more named inputs
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        past_conv: Sequence[Tensor] = (),
        past_recurrent: Sequence[Tensor] = (),
        past_ssm: Sequence[Tensor] = (),
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """Lists may also be one list, or inputs by their names; ``past_ssm`` is a client's name of recurrent states."""
        carried = chain(past_key_values, past_conv, past_recurrent, past_ssm, named.values())
        keys = list(islice(carried, 2 * len(self.cached)))
        past = {kind: list(islice(carried, len(self.shapes.get(kind, ())))) for kind in KINDS}
        with states.keeping(self.user.module, past if any(past.values()) else None) as kept:
            logits, present = self.decode(input_ids, attention_mask, pairs(keys) or None, position_ids)
        return (logits, *flat(present), *kept.tensors)
