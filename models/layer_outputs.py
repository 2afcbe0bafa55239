"""A model with hidden states and attention probabilities of single layers as additional outputs.

Shape letters: B batch, T tokens, S past and new tokens.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, TOTAL, Axis, OutputSpec
from posexport.models.arguments import of_texts
from posexport.models.decoder import Decoder, DecoderModel
from posexport.models.definition import AroundDefinition, Definition
from posexport.models.encoder import Encoder, EncoderModel
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.heads import HeadedDecoder
from posexport.models.with_adapters import WithAdapters
from posexport.nn.calling import carrying
from posexport.nn.collected import Collected, LayerOutput


def stack_of(model: object) -> Encoder | Decoder | None:
    """The encoder or decoder of a model with layers whose tensors can be outputs; else None."""
    if isinstance(model, WithAdapters):
        return stack_of(model.model)
    stack: object = None
    if isinstance(model, EncoderModel):
        stack = model.encoder
    elif isinstance(model, DecoderModel | HeadedDecoder | EncoderDecoderModel):
        stack = model.decoder
    return stack if isinstance(stack, Encoder | Decoder) else None


class WithLayerOutputs(AroundDefinition):
    """``model`` with further outputs of the layers of its stack."""

    def __init__(self, model: Definition, layer_outputs: Sequence[LayerOutput]) -> None:
        super().__init__(model)
        self.layer_outputs = list(layer_outputs)

    @property
    def further(self) -> list[OutputSpec]:
        """Hidden states [B, T, C]; probabilities [B, H, T, S], or [B, T, S] of one head."""
        return [OutputSpec(name=one.name, axes=self._axes(one)) for one in self.layer_outputs]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [*self.model.outputs, *self.further]

    @of_texts("input_ids")
    def forward(self, **tensors: Any) -> tuple[Tensor, ...]:
        with carrying(Collected(self.layer_outputs), Collected) as collected:
            outputs: tuple[Tensor, ...] = self.model(**tensors)
        # the last hidden state may be an output of the model too, and outputs are named one by one
        further = (collected.tensors[one].clone() for one in self.layer_outputs)
        return (*outputs, *further)

    @staticmethod
    def without(module: nn.Module) -> nn.Module:
        """The model itself, where ``module`` has further outputs."""
        return module.model if isinstance(module, WithLayerOutputs) else module

    def _axes(self, one: LayerOutput) -> list[Axis]:
        stack = stack_of(self.model)
        assert stack is not None
        if one.kind == "hidden_states":
            last = isinstance(stack, Decoder) and one.layer == stack.config.layers
            return [BATCH, SEQUENCE, stack.width if isinstance(stack, Decoder) and last else stack.config.hidden]
        heads: list[Axis] = [stack.config.heads] if one.head is None else []
        return [BATCH, *heads, SEQUENCE, TOTAL if self.model.limits.kv_cache else SEQUENCE]
