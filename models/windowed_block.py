"""Parts of a Swin model: its settings, attention inside windows, and blocks.

Liu et al., "Swin Transformer" (arXiv:2103.14030), section 3.2 and its figure 4: windows of a map that was moved
cyclically, with a mask for what came together by that. A map that windows do not divide is padded at its lower and
right ends before it is moved, as in transformers.

Shape letters: T tokens of a map row by row, N windows in one direction or both, M the side of a window, P its places
(M M), Q the places of all windows, L rows or columns of the map.

Shape letters: B images, T tokens of a map row by row, P slots of a window, H heads, D head size, C channels.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.check import Fraction, Size
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.nn.attention import Scoring
from posexport.nn.config import Config
from posexport.nn.feed_forward import activation
from posexport.nn.projections import EncodedAttention


@dataclass(frozen=True)
class Cut:
    """How a map is cut into windows, for one image.

    Attributes:
        tokens_Q: the token at every place, window by window; the one after the last where a place is padding.
        places_T: the place of every token.
        mask_N1PP: what to add to the scores; None: nothing.
    """

    tokens_Q: Tensor
    places_T: Tensor
    mask_N1PP: Tensor | None


def cut(rows: int, columns: int, window: int, shift: Tensor | None, like: Tensor, dropped: float) -> Cut:
    """Windows of a map that was moved up and left by ``shift``, what leaves it coming in at the other side.

    Pairs of places that were no neighbours before get ``dropped`` in the mask. ``rows``, ``columns`` may be symbolic.
    """
    down, across = _Side(rows, window, shift, like.device), _Side(columns, window, shift, like.device)
    row_N1M1, column_1N1M = down.line_NM[:, None, :, None], across.line_NM[None, :, None, :]
    inside_NNMM = (row_N1M1 < rows) & (column_1N1M < columns)
    tokens_NNMM = torch.where(inside_NNMM, row_N1M1 * columns + column_1N1M, rows * columns)
    row_places, column_places = down.places(across.count * window * window, window), across.places(window * window, 1)
    places_T = (row_places[:, None] + column_places[None, :]).flatten()
    mask_N1PP = None
    if shift is not None:
        region_NP = (3 * down.region_NM[:, None, :, None] + across.region_NM[None, :, None, :]).flatten(2).flatten(0, 1)
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
        mask_N1PP = torch.where(region_NP[:, None, :, None] == region_NP[:, None, None, :], zero, dropped)
    return Cut(tokens_NNMM.flatten(), places_T, mask_N1PP)


class _Side:
    """One direction of `cut`: the contents of the M places of its ``count`` windows."""

    def __init__(self, length: int, window: int, shift: Tensor | None, device: torch.device) -> None:
        self.count = (length + window - 1) // window
        # a tensor: the exporter knows no arithmetic of tensors with sizes that the call decides
        whole = torch.full((), self.count * window, dtype=torch.int64, device=device)
        at_N = torch.arange(self.count, device=device)
        within_M = torch.arange(window, device=device)
        place_NM = at_N[:, None] * window + within_M
        self._at_N, self._within_M = at_N, within_M
        self._place_L = torch.arange(length, device=device)
        #: the map's row (or column) at a place; beyond its length at padding
        self.line_NM = place_NM
        #: equal for two places of a window that were neighbours before the shift
        self.region_NM = place_NM
        if shift is not None:
            self.line_NM = (place_NM + shift) % whole
            self._place_L = (self._place_L - shift) % whole
            self.region_NM = (place_NM >= whole - window).long() + (place_NM >= whole - shift).long()

    def places(self, next_window: int, next_line: int) -> Tensor:
        """Where each of the map's rows (or columns) begins among all places; windows and lines lie so far apart."""
        offset_NM = self._at_N[:, None] * next_window + self._within_M * next_line
        return offset_NM.flatten().index_select(0, self._place_L)


#: cosines are multiplied by at most this (Liu et al. 2022, section 3.3: the temperature is above 0.01)
_LARGEST_SCALE = 100.0


@dataclass(frozen=True, kw_only=True)
class WindowedConfig(Config):
    """Sizes and arrangement. ``hidden``: channels of the first stage; every later stage has twice as many.

    ``patch``: pixels of a token's side. ``mlp_ratio``: width of the feed-forward's inside over the stage's.
    """

    channels: Size = 3
    patch: Size = 2
    hidden: Size = 20
    depths: tuple[int, ...] = (2, 2)
    heads: tuple[int, ...] = (2, 5)
    window: Size = 4
    mlp_ratio: float = 2.0
    activation: str = "gelu"
    eps: Fraction = 1e-5
    qkv_bias: bool = True
    #: normalise a sublayer's input, or its output (``res-post``, version 2)
    norm: Literal["pre", "res-post"] = "pre"
    #: scores are cosines times a learned factor a head (version 2); keys have no bias then
    cosine: bool = False
    #: rows of tokens of the images that it was made for, where that decides each stage's window and shift (version 2
    #: as released); None: a map is shifted where it is larger than the window in both directions (version 1)
    made_for: int | None = None
    #: added to the scores of pairs that are neighbours only because of a shift
    dropped: float = -100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.depths or len(self.depths) != len(self.heads) or min(*self.depths, *self.heads) < 1:
            raise PosexportError(
                f"depths and heads must hold a number from 1 on for every stage, got {self.depths} and {self.heads}"
            )
        for stage, heads in enumerate(self.heads):
            if self.width(stage) % heads:
                raise PosexportError(
                    f"the width of stage {stage + 1} must be a multiple of its heads, "
                    f"got {self.width(stage)} and {heads}"
                )
        if self.mlp_ratio * self.hidden < 1:
            raise PosexportError(f"mlp_ratio must be at least 1 / hidden, got {self.mlp_ratio}")
        if self.made_for is not None and self.made_for < 2 ** (len(self.depths) - 1):
            raise PosexportError(
                f"made_for must be at least {2 ** (len(self.depths) - 1)}, so that the last stage has a token, "
                f"got {self.made_for}"
            )

    def width(self, stage: int) -> int:
        """The number of channels of a stage."""
        return self.hidden << stage

    def window_of(self, stage: int) -> int:
        """The side of a stage's windows, in tokens."""
        return self.window if self.made_for is None else min(self.window, self.made_for >> stage)

    def shifts(self, stage: int) -> bool | None:
        """Whether a stage shifts its maps; None: the map's size decides."""
        return None if self.made_for is None else self.made_for >> stage > self.window

    @property
    def least(self) -> int:
        """The smallest side of an image in pixels: no map may be smaller than its window, where maps decide."""
        if self.made_for is not None:
            return 1
        return self.patch * ((self.window - 1) << len(self.depths) - 1) + 1


class WindowAttention(EncodedAttention):
    """Multi-head attention among the tokens of a window, with the encoding's rotation and terms."""

    def __init__(self, config: WindowedConfig, stage: int, encoding: Encoding) -> None:
        width, heads = config.width(stage), config.heads[stage]
        super().__init__(
            width, heads, width // heads, bias=config.qkv_bias, key_bias=not config.cosine, output_bias=True
        )
        self.scale = 1.0 if config.cosine else (width // heads * encoding.score_terms) ** -0.5
        self.logit_scale = nn.Parameter(torch.full((self.heads, 1, 1), 10.0).log()) if config.cosine else None
        self.encoding, self.scoring = encoding, Scoring()

    def forward(self, x_BPC: Tensor, mask_B1PP: Tensor | None, positions: Positions) -> Tensor:
        q_BHPD, k_BHPD = self.queries(x_BPC), self.keys(x_BPC)
        if self.logit_scale is not None:
            wide = torch.promote_types(x_BPC.dtype, torch.float32)
            factor_H11 = self.logit_scale.to(wide).exp().clamp(max=_LARGEST_SCALE)
            q_BHPD = (F.normalize(q_BHPD.to(wide), dim=-1) * factor_H11).to(x_BPC.dtype)
            k_BHPD = F.normalize(k_BHPD.to(wide), dim=-1).to(x_BPC.dtype)
        q_BHPD = self.encoding.rotate(q_BHPD, positions, "query")
        k_BHPD = self.encoding.rotate(k_BHPD, positions, "key")
        return self.attended(x_BPC, q_BHPD, k_BHPD, self.values(x_BPC), None, positions, positions, pairs=mask_B1PP)


class Block(nn.Module):
    """Attention inside windows, then feed-forward; normalised before or after each (`WindowedConfig.norm`)."""

    def __init__(self, config: WindowedConfig, stage: int, encoding: Encoding) -> None:
        super().__init__()
        width = config.width(stage)
        self.pre = config.norm == "pre"
        self.window_tokens = config.window_of(stage) ** 2
        self.attention_norm = nn.LayerNorm(width, eps=config.eps)
        self.attention = WindowAttention(config, stage, encoding)
        self.feedforward_norm = nn.LayerNorm(width, eps=config.eps)
        self.inner = nn.Linear(width, int(config.mlp_ratio * width))
        self.activation = activation(config.activation)
        self.outer = nn.Linear(int(config.mlp_ratio * width), width)

    def forward(self, x_BTC: Tensor, cut: Cut, positions: Positions) -> Tensor:
        if self.pre:
            x_BTC = x_BTC + self._attend(self.attention_norm(x_BTC), cut, positions)
            return x_BTC + self._feed(self.feedforward_norm(x_BTC))
        x_BTC = x_BTC + self.attention_norm(self._attend(x_BTC, cut, positions))
        normed: Tensor = self.feedforward_norm(self._feed(x_BTC))
        return x_BTC + normed

    def _attend(self, x_BTC: Tensor, cut: Cut, positions: Positions) -> Tensor:
        batch, width = x_BTC.shape[0], x_BTC.shape[2]
        # padding is a token of zeros after the last
        windows_BPC = F.pad(x_BTC, (0, 0, 0, 1)).index_select(1, cut.tokens_Q).reshape(-1, self.window_tokens, width)
        mask_B1PP = None if cut.mask_N1PP is None else cut.mask_N1PP[None].expand(batch, -1, -1, -1, -1).flatten(0, 1)
        y_BPC = self.attention(windows_BPC, mask_B1PP, positions)
        y_BTC: Tensor = y_BPC.reshape(batch, -1, width).index_select(1, cut.places_T)
        return y_BTC

    def _feed(self, x_BTC: Tensor) -> Tensor:
        y_BTC: Tensor = self.outer(self.activation(self.inner(x_BTC)))
        return y_BTC
