"""A model with LoRA adapters, from which each row of a batch chooses.

Shape letter: B batch.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posexport.base.spec import ADAPTERS, BATCH, InputSpec, OutputSpec
from posexport.models.arguments import of_texts
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

    @of_texts("input_ids")
    def forward(self, input_ids: Tensor, adapter_ids: Tensor | None = None, **tensors: Any) -> tuple[Tensor, ...]:
        """``adapter_ids``: the adapter of each row, [B]; None: no row has one."""
        if adapter_ids is None:
            adapter_ids = input_ids.new_zeros(input_ids.shape[0])
        with carrying(ChosenAdapters(adapter_ids), ChosenAdapters):
            outputs: tuple[Tensor, ...] = self.model(input_ids=input_ids, **tensors)
        return outputs
