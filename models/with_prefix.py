"""A decoder with virtual tokens at the start of every row: prompt tuning, P-tuning and prefix tuning.

Lester et al. (arXiv:2104.08691), Liu et al. (arXiv:2103.10385), Li and Liang (arXiv:2101.00190). Virtual
tokens precede all inputs, so their keys and values are constants. They are not in the KV cache of a call.

Shape letters: B batch, T new tokens, S past and new tokens, N virtual tokens, G KV heads, D head size.
"""

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import InputSpec, LengthContract, OutputSpec
from posexport.models.cached_decoder import flat
from posexport.models.decoder import Decoder
from posexport.models.definition import AroundDefinition, Definition
from posexport.models.layer_outputs import stack_of
from posexport.nn.caching import KeysAndValues


class Prefix(nn.Module):
    """Keys and values of the virtual tokens in one layer, [1, G, N, D]."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.key, self.value = (nn.Parameter(x, requires_grad=False) for x in (key, value))


class WithPrefix(AroundDefinition):
    """``model``, a decoder with a dynamic KV cache, and ``prefix``, keys and values for every layer."""

    def __init__(self, model: Definition, prefix: Sequence[KeysAndValues]) -> None:
        super().__init__(model)
        prefixes = [Prefix(*layer) for layer in prefix]
        self.virtual = prefix[0][0].shape[2]
        stack = stack_of(model)
        if not isinstance(stack, Decoder):
            self.prefix = nn.ModuleList(prefixes)
            return
        # inside its layer, a reduced model (`posexport.proof.reduced`) keeps it with the layer
        for layer, layer_prefix in zip(stack.layers, prefixes, strict=True):
            layer.prefix = layer_prefix

    @property
    def constants(self) -> list[KeysAndValues]:
        """The keys and values of every layer."""
        return [(module.key, module.value) for module in self.modules() if isinstance(module, Prefix)]

    @property
    def inputs(self) -> list[InputSpec]:
        """Positions end where the virtual tokens leave no room for more."""
        return [
            msgspec.structs.replace(spec, size=spec.size - self.virtual)
            if spec.role == "positions" and spec.size
            else spec
            for spec in self.model.inputs
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        return list(self.model.outputs)

    @property
    def limits(self) -> LengthContract:
        return shortened(self.model.limits, self.virtual)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] = (),
        position_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        rows, virtual = input_ids.shape[0], self.virtual
        past = [*past_key_values, *named.values()]
        # virtual tokens are no padding, and are before all others
        if attention_mask is None:
            read = past[0].shape[2] if past else 0
            attention_mask = input_ids.new_ones(rows, read + input_ids.shape[1])
        mask_BS = torch.cat((attention_mask.new_ones(rows, virtual), attention_mask), 1)
        before: list[Tensor] = []
        for index, constant in enumerate(flat(self.constants)):
            x_BGND = constant.expand(rows, -1, -1, -1)
            before.append(torch.cat((x_BGND, past[index]), 2) if past else x_BGND)
        positions = {}
        if position_ids is not None:
            positions["position_ids"] = torch.where(position_ids < 0, position_ids, position_ids + virtual)
        answer, *present = self.model(input_ids=input_ids, attention_mask=mask_BS, past_key_values=before, **positions)
        return (answer, *(x_BGSD[:, :, virtual:] for x_BGSD in present))


def shortened(limits: LengthContract, virtual: int) -> LengthContract:
    """Subtract the number of virtual tokens from the limits of a decoder."""

    def less(length: int | None) -> int | None:
        return None if length is None else length - virtual

    boundaries = [length - virtual for length in limits.boundaries if length > virtual]
    return msgspec.structs.replace(
        limits,
        max_length=less(limits.max_length),
        trained_length=less(limits.trained_length),
        boundaries=boundaries,
    )
