"""An encoder of the BERT family, with any position encoding.

Devlin et al., "BERT" (arXiv:1810.04805). Its heirs differ in `EncoderConfig`: where normalisations are and of which
kind, embeddings narrower than the model, layers that share their weights, projections without biases, gated
feed-forwards (ModernBERT, T5's encoder).

Shape letters: B batch, T tokens, S tokens attended to, C model size.
"""

from dataclasses import dataclass, field

from torch import Tensor, nn

from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.embeddings import Embeddings, TypedEmbeddingConfig
from posexport.models.layer import EncoderLayer, Memory
from posexport.models.numbering import Counted, Numbering
from posexport.models.transformer import TransformerConfig
from posexport.nn.attention import additive
from posexport.nn.norms import normalisation


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """Embeddings with token types and a stack of layers, which may share their weights."""

    embedding: TypedEmbeddingConfig = field(default_factory=TypedEmbeddingConfig)
    #: the layers in turn use these many sets of weights (None: as many as layers; ALBERT: 1)
    layer_groups: int | None = None
    #: the first layer's attention has a normalisation
    first_norm: bool = True
    #: inputs and outputs have the sequence before the batch, as PyTorch's own transformer modules do
    sequence_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_groups is not None and not 1 <= self.layer_groups <= self.layers:
            raise PosexportError(f"layer_groups must be from 1 to layers={self.layers}, got {self.layer_groups}")


class Encoder(nn.Module):
    """Embeddings and layers: token ids [B, T] to hidden states [B, T, C]."""

    def __init__(self, config: EncoderConfig, encoding: Encoding, numbering: Numbering | None = None) -> None:
        super().__init__()
        self.config = config
        layer = config.layer
        # an encoding with parameters in every layer is a template here: a copy beside the layers' would be dead weight
        shared = None if encoding.per_layer else encoding
        self.embeddings = Embeddings(config.embedding, layer.norm, layer.hidden, shared, numbering or Counted())
        groups = config.layer_groups or config.layers
        self.groups = nn.ModuleList(
            EncoderLayer(layer, encoding, index, first_norm=config.first_norm) for index in range(groups)
        )
        self.final_norm = normalisation(layer.norm, layer.hidden) if config.final_norm else None

    @property
    def encodings(self) -> list[Encoding]:
        """The encoding of every layer: one and the same where all share it."""
        return [layer.attention.encoding for layer in self.groups if isinstance(layer, EncoderLayer)]

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer: the model's own where all layers share it."""
        return self.encodings[0]

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        types_BT: Tensor | None = None,
        memory_BSC: Tensor | None = None,
        memory_mask_BS: Tensor | None = None,
    ) -> Tensor:
        x_BTC: Tensor
        x_BTC, positions = self.embeddings(ids_BT, types_BT, mask_BT)
        mask_B11T = additive(mask_BT, x_BTC)
        memory = None
        if memory_BSC is not None:
            counted = Positions.counted(memory_BSC.shape[1], memory_BSC.device)
            memory = Memory(memory_BSC, additive(memory_mask_BS, x_BTC), counted)
        for index in range(self.config.layers):
            group = self.groups[index * len(self.groups) // self.config.layers]
            x_BTC = group(x_BTC, mask_B11T, positions, memory)
        if self.final_norm is not None:
            x_BTC = self.final_norm(x_BTC)
        return x_BTC
