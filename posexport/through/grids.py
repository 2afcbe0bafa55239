"""Images of any size, packed patch by patch into one row, and a table of their sizes (``image_grid_thw``): Qwen's.

A patch's row, column, image and frame are computed of the table in the graph. transformers computes them in Python
loops over its values, and takes them as arguments too.

Shape letters: N patches of all images, I images, K tokens of all images (squares of ``side`` x ``side`` patches), C
model size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posexport.checkpoints.config import Config
from posexport.spec import IMAGES, PATCHES, InputSpec, OutputSpec
from posexport.through import attention
from posexport.through.mrope import MRopeDecoder
from posexport.through.towers import FEATURES, Images, Sizes, Tower
from posexport.through.wrapped import PIXELS, POSITIONS

GRIDS = "image_grid_thw"
_TOKENS = "num_image_tokens"
#: tokens of all images and images that a graph is traced with, and proven with (the grids are drawn)
_TRACED, _PROVEN = (17, 2), ((4, 1), (1, 1), (6, 1), (9, 2), (12, 1), (16, 3), (30, 2))
#: rows and columns of tokens of an image in each row of the example, and images that the tower alone is tried with
_EXAMPLE, _TRIED = ((2, 3), (3, 2)), ((2, 3, 5), (1, 1, 1), (1, 7, 2), (3, 2, 2))


class Patches:
    """Where the patches of images stand. ``grids_I3``: frames, rows and columns; ``length``: patches of all."""

    def __init__(self, grids_I3: Tensor, length: Any, side: int) -> None:
        counts_I = grids_I3.prod(1)
        ends_I, index_N = counts_I.cumsum(0), torch.arange(length, device=grids_I3.device)
        image_N = (index_N[:, None] >= ends_I).sum(1)
        heights_N, widths_N = grids_I3[:, 1][image_N], grids_I3[:, 2][image_N]
        since_N = index_N - (ends_I - counts_I)[image_N]
        inside_N = since_N % (heights_N * widths_N)
        frames_I = grids_I3[:, 0]
        #: of all images
        self.frame_N = (frames_I.cumsum(0) - frames_I)[image_N] + since_N // (heights_N * widths_N)
        # the patches of a token one after another, then the tokens of a row
        token_N, across_N = inside_N // side**2, widths_N // side
        self.row_N = token_N // across_N * side + inside_N // side % side
        self.column_N = token_N % across_N * side + inside_N % side
        self.heights_N, self.widths_N = heights_N, widths_N

    def windows(self, patches: int) -> Tensor:
        """Of every patch, the number of its window of ``patches`` x ``patches`` in its frame, [N]."""
        above = torch.maximum(self.heights_N.max(), self.widths_N.max())
        return (self.frame_N * above + self.row_N // patches) * above + self.column_N // patches


class Grids(Tower):
    """Patches [N, D] and grids [I, 3] to features [K, C], by the tower of Qwen2-VL or Qwen2.5-VL."""

    decoder = MRopeDecoder

    def __init__(self, config: Config, model: Any) -> None:
        vision = model.config.vision_config
        self._side = vision.spatial_merge_size
        super().__init__(config, model)
        self.visual, self._index = model.model.visual, model.model.get_rope_index
        patches = getattr(vision, "window_size", 0) // self._side // vision.patch_size
        self._window = patches * self._side
        if model.config.model_type == "qwen2_vl":
            self.ports = {GRIDS: "grid_thw"}  # as transformers.js calls it
        proven = [self._of(*sizes) for sizes in _PROVEN]
        self.sizes = Sizes(proven, self._of(*_TRACED), {PATCHES: self._side**2})

    def _of(self, tokens: int, images: int) -> dict[str, int]:
        return {PATCHES: tokens * self._side**2, IMAGES: images}

    def read(self, config: Config, model: Any) -> list[InputSpec]:
        vision = model.config.vision_config
        width = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
        return [
            InputSpec(name=PIXELS, dtype="float32", axes=[PATCHES, width], role="values"),
            InputSpec(name=GRIDS, dtype="int64", axes=[IMAGES, 3], role="grids", size=self._side),
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [OutputSpec(name=FEATURES, axes=[_TOKENS, self.visual.merger.mlp[-1].out_features])]

    def example(self, random: torch.Generator) -> Images:
        return self._drawn([(1, *sides) for sides in _EXAMPLE], random)

    def tokens(self, images: Images) -> int:
        return int(images[GRIDS].prod(1)[0]) // int(self._side**2)

    def further(self, random: torch.Generator) -> Images:
        return self._drawn(_TRIED, random)

    def _drawn(self, images: Sequence[tuple[int, int, int]], random: torch.Generator) -> Images:
        """Images of so many frames, and rows and columns of tokens."""
        grids_I3 = torch.tensor(images) * torch.tensor([1, self._side, self._side])
        width = self.inputs[0].axes[-1]
        assert isinstance(width, int)
        return {PIXELS: torch.randn(int(grids_I3.prod(1).sum()), width, generator=random), GRIDS: grids_I3}

    def beside(self, image_BT: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": image_BT.int()}

    def given(self, image_BT: Tensor, images: Images) -> dict[str, Tensor]:
        positions_3BT, _ = self._index(image_BT.long(), image_BT.int(), images[GRIDS])
        return {POSITIONS: positions_3BT}

    def ready(self) -> None:
        attention.use(self.visual, attention=attention.PACKED)

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        patches = Patches(image_grid_thw, pixel_values.shape[0], self._side)
        known: dict[str, Any] = {
            "position_ids": torch.stack((patches.row_N, patches.column_N), -1),
            "cu_seqlens": patches.frame_N,
            "max_seqlen": 1,
        }
        if self._window:
            tokens = pixel_values.shape[0] // self._side**2
            known["window_index"] = torch.arange(tokens, device=pixel_values.device)
            known["cu_window_seqlens"], known["max_window_seqlen"] = patches.windows(self._window), 1
        features_KC: Tensor = self.visual(pixel_values, grid_thw=image_grid_thw, **known).pooler_output
        return features_KC
