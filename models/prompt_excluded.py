"""A model with pooling that leaves out a text's prompt: its tokens are attended to, but not pooled.

Su et al., "One Embedder, Any Task" (INSTRUCTOR, arXiv:2212.09741), section 2.1; sentence-transformers'
``include_prompt: false``.
"""

import msgspec
from torch import Tensor

from posexport.base.spec import BATCH, PROMPT_MASK, SEQUENCE, InputSpec, OutputSpec, Promises
from posexport.models.definition import AroundDefinition, Definition
from posexport.nn.pooling import SentenceEmbedding


class PromptExcluded(AroundDefinition):
    """``model`` gives the hidden states first; the tokens that ``prompt_mask`` marks are not pooled."""

    def __init__(self, model: Definition, head: SentenceEmbedding) -> None:
        super().__init__(model)
        self.head = head

    @property
    def promises(self) -> Promises:
        """The model's; ``cls`` reads the first token that is pooled, not the first slot."""
        return msgspec.structs.replace(self.model.promises, reads_first_token=False)

    @property
    def inputs(self) -> list[InputSpec]:
        marks = InputSpec(name=PROMPT_MASK, dtype="int64", axes=[BATCH, SEQUENCE], role="flags", size=2, default=0)
        return [*self.model.inputs, marks]

    @property
    def outputs(self) -> list[OutputSpec]:
        return self.head.outputs

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prompt_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        optional = {"token_type_ids": token_type_ids, "global_attention_mask": global_attention_mask}
        present = {name: tensor for name, tensor in optional.items() if tensor is not None}
        states: tuple[Tensor, ...] = self.model(input_ids=input_ids, attention_mask=attention_mask, **present)
        outputs: tuple[Tensor, ...] = self.head(states[0], attention_mask, prompt_mask)
        return outputs
