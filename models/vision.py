"""A vision transformer: an image cut into patches, each a token, and an encoder over them, with any encoding of images.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (arXiv:2010.11929), section 3.1; layers as in
`posexport.models.encoder`, with the normalisation before each sublayer. Images may have any size from one patch on;
pixels that fill no patch are left out. Left out are also dropout and masked patches, which are for training.

Shape letters: B batch, N tokens without coordinates (class token, registers), T all tokens, C model size.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.options.check import Count, Size
from posexport.base.spec import BATCH, HEIGHT, PATCHES, WIDTH, InputSpec, LengthContract, OutputSpec, ProofPlan
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.definition import Definition, limits_of
from posexport.models.layer import EncoderLayer, LayerConfig
from posexport.nn.config import Config


@dataclass(frozen=True, kw_only=True)
class VisionConfig(Config):
    """Sizes and arrangement. ``rows`` and ``columns``: the grid of patches that it was trained with."""

    hidden: int = 60
    layers: Size = 2
    heads: int = 5
    feedforward: int = 97
    channels: Size = 3
    #: pixels of a patch's side
    patch: Size = 4
    rows: Size = 6
    columns: Size = 5
    #: a class token before the patches
    cls: bool = True
    #: tokens between the class token and the patches that nothing is read from (Darcet et al., arXiv:2309.16588)
    registers: Count = 0
    activation: str = "gelu"
    eps: float = 1e-12
    layer_scale: bool = False
    final_norm: bool = True
    #: what an image's answer is read from: the class token or the mean of the patches; None: the former if there is one
    pooling: Literal["cls", "mean"] | None = None
    #: normalise the pooled vector
    pooled_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling == "cls" and not self.cls:
            raise PosexportError("pooling=cls reads the class token, which cls=false leaves out; use pooling=mean")
        assert self.layer

    @property
    def layer(self) -> LayerConfig:
        """The settings of its layers; raises PosexportError where they do not fit."""
        return LayerConfig.of(
            hidden=self.hidden,
            heads=self.heads,
            feedforward=self.feedforward,
            activation=self.activation,
            eps=self.eps,
            layer_scale=self.layer_scale,
            norm="pre",
        )

    @property
    def prefix(self) -> int:
        """How many tokens precede the patches."""
        return int(self.cls) + self.registers


class Pooled(nn.Module):
    """Logits over labels from the class token or the mean of the patches."""

    def __init__(self, config: VisionConfig, labels: int) -> None:
        super().__init__()
        self.mean = not config.cls if config.pooling is None else config.pooling == "mean"
        self.prefix = config.prefix
        self.norm = nn.LayerNorm(config.hidden, eps=config.eps) if config.pooled_norm else None
        self.out = nn.Linear(config.hidden, labels)

    def forward(self, x_BTC: Tensor) -> Tensor:
        pooled_BC = x_BTC[:, self.prefix :].mean(1) if self.mean else x_BTC[:, 0]
        logits: Tensor = self.out(pooled_BC if self.norm is None else self.norm(pooled_BC))
        return logits


class Vision(Definition):
    """``pixel_values`` [B, channels, height, width] to the hidden states of all tokens, or to logits over labels.

    ``labels``: their number, for logits; None for hidden states. ``beside``: a second encoding, applied to the
    embeddings only (absolute positions in a model that has relative ones).
    """

    def __init__(
        self, config: VisionConfig, encoding: Encoding, labels: int | None = None, beside: Encoding | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.patches = nn.Conv2d(config.channels, config.hidden, kernel_size=config.patch, stride=config.patch)
        self.prefix = nn.Parameter(torch.empty(1, config.prefix, config.hidden).normal_(std=0.02))
        # an encoding with parameters in every layer is a template here, and adds nothing to the embeddings
        added = [one for one in (beside, encoding) if one is not None and not one.per_layer]
        self.added = nn.ModuleList(added)
        self.layers = nn.ModuleList(EncoderLayer(config.layer, encoding, index) for index in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden, eps=config.eps) if config.final_norm else None
        self.pooled = None if labels is None else Pooled(config, labels)

    @property
    def encoding(self) -> Encoding:
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        return first.attention.encoding

    @property
    def inputs(self) -> list[InputSpec]:
        axes: list[str | int] = [BATCH, self.config.channels, HEIGHT, WIDTH]
        return [InputSpec(name="pixel_values", dtype=MODEL_DTYPE.name, axes=axes, role="values")]

    @property
    def outputs(self) -> list[OutputSpec]:
        """Hidden states of all tokens, the class token first; or logits."""
        if self.pooled is not None:
            return [OutputSpec(name="logits", axes=[BATCH, self.pooled.out.out_features])]
        return [OutputSpec(name="last_hidden_state", axes=[BATCH, PATCHES, self.config.hidden])]

    @property
    def limits(self) -> LengthContract:
        return msgspec.structs.replace(limits_of(self.encoding), patch_size=self.config.patch)

    @property
    def plan(self) -> ProofPlan:
        """Images of one patch, less than the trained grid, the grid, more, several query blocks."""
        config, patch = self.config, self.config.patch
        rows, columns = config.rows, config.columns
        grids = [
            (1, 1),
            (1, 3),
            (max(1, rows // 2), columns),
            (rows, columns),
            (columns + 2, rows + rows // 2),
            (16, 17),
        ]
        whole = [(patch * down, patch * right) for down, right in dict.fromkeys(grids)]
        # pixels that fill no patch, in one direction and in both
        partial = [(rows * patch, columns * patch + patch - 1), (2 * patch + patch // 2, 4 * patch + patch - 1)]
        return ProofPlan(
            proof_image_sizes=list(dict.fromkeys(whole + partial)), trace_sizes={HEIGHT: 5 * patch, WIDTH: 7 * patch}
        )

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        grid_BCRC = self.patches(pixel_values)
        positions = Positions.image(
            grid_BCRC.shape[2], grid_BCRC.shape[3], prefix=self.config.prefix, device=pixel_values.device
        )
        x_BTC = grid_BCRC.flatten(2).mT
        x_BTC = torch.cat([self.prefix.expand(x_BTC.shape[0], -1, -1), x_BTC], 1)
        for encoding in self.added:
            assert isinstance(encoding, Encoding)
            x_BTC = encoding.embed(x_BTC, positions)
        for layer in self.layers:
            x_BTC = layer(x_BTC, None, positions)
        if self.final_norm is not None:
            x_BTC = self.final_norm(x_BTC)
        return (x_BTC if self.pooled is None else self.pooled(x_BTC),)
