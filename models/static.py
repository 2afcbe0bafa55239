"""The vector of a text as the mean of a table's rows, without a transformer, and a classifier behind it.

Tulkens and van Dongen, "Model2Vec" (github.com/MinishLab/model2vec, version 0.10): unknown tokens do not count; the
head has linear layers with ReLU between them.

Shape letters: B batch, T tokens, C channels.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, InputSpec, OutputSpec
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.models.definition import Definition, text_inputs


class StaticEmbedding(Definition):
    """Returns the vector of a text, or what the head makes of it.

    Args:
        vocab: rows of the table.
        width: their elements.
        output: name of the output: ``sentence_embedding``, or ``logits``.
        unknown: id of tokens that do not count; None: all count.
        normalised: the mean is divided by its length.
        head: outputs of the linear layers of the head; none: there is no head.
    """

    def __init__(
        self, vocab: int, width: int, output: str, *, unknown: int | None, normalised: bool, head: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        sizes = [width, *head]
        self.head = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.unknown, self.normalised = unknown, normalised
        self.nope = NoPE()
        self._output = OutputSpec(name=output, axes=[BATCH, sizes[-1]])

    @property
    def inputs(self) -> list[InputSpec]:
        return text_inputs(self.table.num_embeddings, 0)

    @property
    def outputs(self) -> list[OutputSpec]:
        return [self._output]

    @property
    def encoding(self) -> Encoding:
        return self.nope

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor]:
        x_BTC = self.table(input_ids)
        counts_BT = input_ids >= 0 if self.unknown is None else input_ids != self.unknown
        if attention_mask is not None:
            counts_BT = counts_BT & (attention_mask != 0)
        counts_BT1 = counts_BT.to(x_BTC.dtype)[:, :, None]
        x_BC = (x_BTC * counts_BT1).sum(1) / counts_BT1.sum(1).clamp(min=1)
        if self.normalised:
            x_BC = F.normalize(x_BC, dim=-1)
        for place, layer in enumerate(self.head):
            x_BC = layer(x_BC if place == 0 else x_BC.relu())
        return (x_BC,)
