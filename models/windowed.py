"""A vision model that attends inside windows of a map, Swin and Swin V2, with an encoding of positions in a window.

Liu et al., "Swin Transformer" (arXiv:2103.14030), section 3, and "Swin Transformer V2" (arXiv:2111.09883), section 3,
as released in transformers 4.57: a map that its windows do not divide is padded with zeros, which are attended to. What
the second version changes is in `WindowedConfig`. Every map size is right in one graph: windows, their shift and the
mask of a shifted map are computed from the size of the call's image. Not done: absolute position embeddings, which no
released code can run; masked image modelling.

Shape letters: B images, T tokens of a map row by row, N windows of an image, C channels.
"""

from collections.abc import Sequence

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import BATCH, HEIGHT, PATCHES, WIDTH, InputSpec, LengthContract, OutputSpec, ProofPlan
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.encodings.encoding import Encoding
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.models.definition import Definition, limits_of
from posexport.models.windowed_block import Block, WindowedConfig, cut

#: of the normalisations that no configuration sets
_EPS = 1e-5


class Merging(nn.Module):
    """Two by two tokens become one of twice the width; a map of odd sides is padded with zeros."""

    def __init__(self, config: WindowedConfig, stage: int) -> None:
        super().__init__()
        width = config.width(stage)
        self.first = config.norm == "pre"
        self.norm = nn.LayerNorm(4 * width if self.first else 2 * width, eps=_EPS)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x_BTC: Tensor, rows: int, columns: int) -> Tensor:
        x_BRCC = x_BTC.reshape(x_BTC.shape[0], rows, columns, -1)
        # one row and one column more than needed where a side is even: the steps of two pass it by
        x_BRCC = F.pad(x_BRCC, (0, 0, 0, 1, 0, 1))
        upper, lower = x_BRCC[:, 0:rows:2], x_BRCC[:, 1 : rows + 1 : 2]
        parts = [half[:, :, start : columns + start : 2] for start in (0, 1) for half in (upper, lower)]
        merged_BTC = torch.cat(parts, -1).flatten(1, 2)
        out: Tensor = self.reduction(self.norm(merged_BTC)) if self.first else self.norm(self.reduction(merged_BTC))
        return out


class Stage(nn.Module):
    """Blocks at one size of map, every second one on a shifted map, then `Merging` unless it is the last."""

    def __init__(self, config: WindowedConfig, stage: int, encoding: Encoding, first: int) -> None:
        """``first``: how many blocks precede it."""
        super().__init__()
        self.window = config.window_of(stage)
        self.shifts = config.shifts(stage)
        self.dropped = config.dropped
        self.blocks = nn.ModuleList(
            Block(config, stage, encoding.in_layer(first + i)) for i in range(config.depths[stage])
        )
        self.merging = Merging(config, stage) if stage < len(config.depths) - 1 else None

    def forward(self, x_BTC: Tensor, rows: int, columns: int) -> Tensor:
        positions = Positions.image(self.window, self.window, device=x_BTC.device)
        windows = cut(rows, columns, self.window, None, x_BTC, self.dropped)
        moved = windows
        if len(self.blocks) > 1 and self.shifts is not False:
            moved = cut(rows, columns, self.window, self._shift(rows, columns, x_BTC), x_BTC, self.dropped)
        for index, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, moved if index % 2 else windows, positions)
        return x_BTC if self.merging is None else self.merging(x_BTC, rows, columns)

    def _shift(self, rows: int, columns: int, x_BTC: Tensor) -> Tensor:
        """Half a window; nothing for a map that is a single window in some direction, where maps decide."""
        half = torch.full((), self.window // 2, dtype=torch.int64, device=x_BTC.device)
        if self.shifts is not None:
            return half
        least = torch.minimum(
            *(torch.full((), side, dtype=torch.int64, device=half.device) for side in (rows, columns))
        )
        return torch.where(least > self.window, half, 0)


class Windowed(Definition):
    """Pixels [B, channels, height, width] to hidden states [B, T, C] of the last map, or to logits of labels.

    ``encodings``: one a stage, made for the stage's heads and window. ``labels``: how many logits, from the mean over
    the tokens; None: the hidden states. Raises PosexportError for encodings that do not fit.
    """

    def __init__(self, config: WindowedConfig, encodings: Sequence[Encoding], labels: int | None = None) -> None:
        super().__init__()
        if len(encodings) != len(config.depths):
            raise PosexportError(f"there must be one encoding a stage, {len(config.depths)}, got {len(encodings)}")
        for encoding in encodings:
            if "embed" in encoding.hooks:
                raise PosexportError(
                    f"the encoding {encoding.name} acts on embeddings; attention in windows needs one that acts on "
                    "scores, on queries and keys, or on values"
                )
        self.config = config
        self.projection = nn.Conv2d(config.channels, config.hidden, config.patch, stride=config.patch)
        self.embedding_norm = nn.LayerNorm(config.hidden, eps=_EPS)
        self.stages = nn.ModuleList(
            Stage(config, stage, encoding, sum(config.depths[:stage])) for stage, encoding in enumerate(encodings)
        )
        self.final_norm = nn.LayerNorm(self.width, eps=config.eps)
        self.classifier = None if labels is None else nn.Linear(self.width, labels)

    @property
    def width(self) -> int:
        return self.config.width(len(self.config.depths) - 1)

    @property
    def inputs(self) -> list[InputSpec]:
        axes: list[str | int] = [BATCH, self.config.channels, HEIGHT, WIDTH]
        return [InputSpec(name="pixel_values", dtype=MODEL_DTYPE.name, axes=axes, role="values")]

    @property
    def outputs(self) -> list[OutputSpec]:
        if self.classifier is None:
            return [OutputSpec(name="last_hidden_state", axes=[BATCH, PATCHES, self.width])]
        return [OutputSpec(name="logits", axes=[BATCH, self.classifier.out_features])]

    @property
    def encoding(self) -> Encoding:
        stage = self.stages[0]
        assert isinstance(stage, Stage)
        block = stage.blocks[0]
        assert isinstance(block, Block)
        return block.attention.encoding

    @property
    def limits(self) -> LengthContract:
        """The encoding's, and the smallest image."""
        least = self.config.least
        smallest = {HEIGHT: least, WIDTH: least} if least > 1 else {}
        return msgspec.structs.replace(limits_of(self.encoding), min_sizes=smallest, patch_size=self._step)

    @property
    def _step(self) -> int:
        """Pixels from one token of the last stage to the next."""
        return self.config.patch << len(self.config.depths) - 1

    @property
    def plan(self) -> ProofPlan:
        """Images around the sizes at which the last map is one window, with and without padding in either direction."""
        config, least, step = self.config, self.config.least, self._step
        even = step * config.window_of(len(config.depths) - 1)
        images = [
            (least, least + config.patch),
            (even, even),
            (even, even + step),
            (even + 1, even + step),
            (2 * even + step - config.patch, even + step + 1),
            (2 * even, 3 * even),
        ]
        # several windows everywhere, so that the tracer takes no count for a constant
        return ProofPlan(proof_image_sizes=images, trace_sizes={HEIGHT: 2 * even + 1, WIDTH: 4 * even - 1})

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        patch = self.config.patch
        # zeros complete the last patches; the strides skip the surplus
        map_BCRC = self.projection(F.pad(pixel_values, (0, patch - 1, 0, patch - 1)))
        rows, columns = map_BCRC.shape[2:]
        x_BTC = self.embedding_norm(map_BCRC.flatten(2).transpose(1, 2))
        for stage in self.stages:
            x_BTC = stage(x_BTC, rows, columns)
            rows, columns = (rows + 1) // 2, (columns + 1) // 2
        x_BTC = self.final_norm(x_BTC)
        return (x_BTC if self.classifier is None else self.classifier(x_BTC.mean(1)),)
