"""The settings that encoders and decoders of text share."""

from dataclasses import dataclass, field

from posexport.models.embeddings import EmbeddingConfig
from posexport.models.layer import LayerConfig
from posexport.nn.config import Config
from posexport.options.values import Size


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """Embeddings and a stack of layers."""

    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    layer: LayerConfig = field(default_factory=LayerConfig)
    layers: Size = 2
    final_norm: bool = False

    @property
    def vocab(self) -> int:
        return self.embedding.vocab

    @property
    def padding_id(self) -> int:
        """The token that fills padded slots."""
        return self.embedding.padding_id

    @property
    def hidden(self) -> int:
        return self.layer.hidden

    @property
    def heads(self) -> int:
        return self.layer.attention.heads

    @property
    def head_size(self) -> int:
        return self.layer.head_size
