"""Linear projections and embeddings with LoRA adapters, from which each row of a batch chooses.

Hu et al., "LoRA" (arXiv:2106.09685), section 4.1: W x + s B A x. The factor s is in B. Adapter 0 is none: zeros.

Shape letters: B batch, T tokens, I inputs, O outputs, R rank, V vocabulary, N adapters and none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posexport.nn.calling import carried


@dataclass(frozen=True)
class ChosenAdapters:
    """The adapter of each row of a call, [B]; 0: none."""

    ids_B: Tensor


class AdaptedLinear(nn.Linear):
    """A linear projection of [B, T, I] or [B, I], with ``lora_A`` [N, I, R] and ``lora_B`` [N, R, O]."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    @staticmethod
    def of(linear: nn.Linear, a_NIR: Tensor, b_NRO: Tensor) -> "AdaptedLinear":
        """Returns the same projection with adapters; it shares its weights."""
        bias = linear.bias is not None
        adapted = AdaptedLinear(linear.in_features, linear.out_features, bias=bias, device="meta")
        adapted.weight, adapted.bias = linear.weight, linear.bias
        adapted.lora_A, adapted.lora_B = (nn.Parameter(x, requires_grad=False) for x in (a_NIR, b_NRO))
        return adapted

    def forward(self, x: Tensor) -> Tensor:
        """Without `ChosenAdapters` in the call, W x."""
        y = super().forward(x)
        chosen = carried(ChosenAdapters)
        if chosen is None:
            return y
        a_BIR, b_BRO = (torch.index_select(stack, 0, chosen.ids_B) for stack in (self.lora_A, self.lora_B))
        if x.dim() == 2:
            return y + (x[:, None] @ a_BIR @ b_BRO)[:, 0]
        return y + x @ a_BIR @ b_BRO


class AdaptedEmbedding(nn.Embedding):
    """An embedding of ids [B, T], with ``lora_A`` [N, V, R] and ``lora_B`` [N, R, O]."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    @staticmethod
    def of(embedding: nn.Embedding, a_NVR: Tensor, b_NRO: Tensor) -> "AdaptedEmbedding":
        """Returns the same embedding with adapters; it shares its weights."""
        adapted = AdaptedEmbedding(embedding.num_embeddings, embedding.embedding_dim, device="meta")
        adapted.weight = embedding.weight
        adapted.lora_A, adapted.lora_B = (nn.Parameter(x, requires_grad=False) for x in (a_NVR, b_NRO))
        return adapted

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (PyTorch's name of the argument)
        """Without `ChosenAdapters` in the call, the rows of the table."""
        y = super().forward(input)
        chosen = carried(ChosenAdapters)
        if chosen is None:
            return y
        return y + self.lora_A[chosen.ids_B[:, None], input] @ torch.index_select(self.lora_B, 0, chosen.ids_B)
