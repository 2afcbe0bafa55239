"""A model with LoRA adapters, from which each row of a batch chooses.

Shape letter: B batch.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posexport.base.spec import ADAPTERS, BATCH, InputSpec, OutputSpec
from posexport.models.definition import AroundDefinition
from posexport.nn.adapted import ChosenAdapters
from posexport.nn.calling import carrying


class WithAdapters(AroundDefinition):
    """``model``, a definition or a module with its inputs, has modules of `posexport.nn.adapted`.

    ``names``: of the adapters from 1 on.
    """

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        super().__init__(model)
        self.names = list(names)

    @property
    def chosen(self) -> InputSpec:
        """The input with the adapter of each row."""
        return InputSpec(
            name=ADAPTERS,
            dtype="int64",
            axes=[BATCH],
            role="adapters",
            size=len(self.names) + 1,
            default=0,
            names=self.names,
        )

    @property
    def inputs(self) -> list[InputSpec]:
        return [*self.model.inputs, self.chosen]

    @property
    def outputs(self) -> list[OutputSpec]:
        return list(self.model.outputs)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prompt_mask: Tensor | None = None,
        past_key_values: Sequence[Tensor] | None = None,
        position_ids: Tensor | None = None,
        adapter_ids: Tensor | None = None,
        **named: Tensor,
    ) -> tuple[Tensor, ...]:
        """Arguments of every model of texts, which torch.export reads; None is not passed on, and no adapter is 0."""
        optional = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "global_attention_mask": global_attention_mask,
            "prompt_mask": prompt_mask,
            "past_key_values": past_key_values,
            "position_ids": position_ids,
        }
        arguments = {name: value for name, value in optional.items() if value is not None} | named
        if adapter_ids is None:
            adapter_ids = input_ids.new_zeros(input_ids.shape[0])
        with carrying(ChosenAdapters(adapter_ids), ChosenAdapters):
            outputs: tuple[Tensor, ...] = self.model(input_ids=input_ids, **arguments)
        return outputs
