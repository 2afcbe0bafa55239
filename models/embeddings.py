"""Token embeddings with token types, positions (added or joined) and a normalisation.

Shape letters: B batch, T tokens, C model size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posexport.base.options.check import Positive, Size
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.nn.config import Config, named
from posexport.nn.norms import NormConfig, normalisation
from posexport.nn.position_ids import PositionIds


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """``width``: channels of the table where they are not the model's ``hidden``."""

    vocab: Size = 101
    width: Size | None = named("embedding", None)
    #: token embeddings are multiplied by this
    scale: Positive = named("embedding_scale", 1.0)
    #: embeddings in the place of ids (`posexport.models.embeddings_input`) have the scale already; not in Granite
    scaled_table: bool = named("embedding_scaled_table", True)
    norm: bool = named("embedding_norm", True)
    padding_id: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.padding_id < self.vocab:
            raise PosexportError(f"padding_id must be from 0 to vocab - 1 = {self.vocab - 1}, got {self.padding_id}")


@dataclass(frozen=True, kw_only=True)
class TypedEmbeddingConfig(EmbeddingConfig):
    """Embeddings of the BERT family."""

    types: int = 2
    #: the mask token where its embeddings are left out and the others scaled to make up for it (ESM); None: kept
    dropped_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.types < 0:
            raise PosexportError(f"types must be at least 0 (no token types), got {self.types}")
        if self.dropped_id is not None and not 0 <= self.dropped_id < self.vocab:
            raise PosexportError(f"dropped_id must be from 0 to vocab - 1 = {self.vocab - 1}, got {self.dropped_id}")


class Embeddings(nn.Module):
    """Token and type embeddings, positions, normalisation, and the projection to the model's width."""

    def __init__(
        self,
        config: TypedEmbeddingConfig,
        norm: NormConfig,
        hidden: int,
        encoding: Encoding | None,
        position_ids: PositionIds,
    ) -> None:
        super().__init__()
        width = config.width or hidden
        self.token = nn.Embedding(config.vocab, width)
        self.scale = config.scale
        self.dropped_id = config.dropped_id
        self.token_type = nn.Embedding(config.types, width) if config.types else None
        self.encoding = encoding
        self.position_ids = position_ids
        joined = width + (encoding.added_width if encoding else 0)
        self.norm = normalisation(norm, joined) if config.norm else None
        self.project = nn.Linear(joined, hidden) if config.width or joined > width else None

    def forward(
        self, ids_BT: Tensor, types_BT: Tensor | None, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, Positions]:
        x_BTC = self.token(ids_BT)
        if self.scale != 1:
            x_BTC = x_BTC * self.scale
        if self.dropped_id is not None:
            x_BTC = _without(x_BTC, ids_BT == self.dropped_id, mask_BT)
        if self.token_type is not None:
            x_BTC = x_BTC + (self.token_type.weight[0] if types_BT is None else self.token_type(types_BT))
        positions = self.position_ids(ids_BT)
        if self.encoding is not None:
            x_BTC = self.encoding.embed(x_BTC, positions)
        if self.norm is not None:
            x_BTC = self.norm(x_BTC)
        return (x_BTC if self.project is None else self.project(x_BTC)), positions


def _without(x_BTC: Tensor, dropped_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Embeddings without the dropped tokens', scaled as ESM does.

    It was trained with 12 % of the tokens dropped, and the rest is scaled to what they would be then: by 0.88 over the
    share of real tokens that is left (Rives et al. 2021, released code). Where none is left all is zero.
    """
    wide = torch.promote_types(x_BTC.dtype, torch.float32)
    real_BT = torch.ones_like(dropped_BT) if mask_BT is None else mask_BT != 0
    total_B = real_BT.sum(1)
    left_B = total_B - (real_BT & dropped_BT).sum(1)
    scale_B = 0.88 * total_B.to(wide) / left_B.clamp(min=1).to(wide)
    kept_BTC = torch.where(dropped_BT[:, :, None], torch.zeros((), dtype=wide, device=x_BTC.device), x_BTC.to(wide))
    return (kept_BTC * scale_B[:, None, None]).to(x_BTC.dtype)
