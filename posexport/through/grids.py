"""Images of any size, packed into one sequence of patches, with a table of their sizes (``image_grid_thw``): Qwen's.

The graph computes every patch's row, column and frame from the table. transformers computes them in Python loops over
its values, and accepts them as arguments.

Shape letters: N patches of all images, I images, K tokens of all images (squares of ``side`` x ``side`` patches), C
model size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posexport.base.spec import IMAGES, PATCHES, InputSpec, OutputSpec
from posexport.checkpoints.config import Config
from posexport.through import attention
from posexport.through.inputs import PIXELS, POSITIONS
from posexport.through.mrope import MRopeDecoder
from posexport.through.towers import FEATURES, Images, Sizes, Tower

GRIDS = "image_grid_thw"
NUMBER = "num_image_tokens"
#: (tokens, images) that a graph is traced with, and proven with; the grids are random
_TRACED, _PROVEN = (17, 2), ((4, 1), (1, 1), (6, 1), (9, 2), (12, 1), (16, 3), (30, 2))
#: (rows, columns) of the example's images in tokens; (frames, rows, columns) of the images of `Grids.more_images`
_EXAMPLE, _MORE_IMAGES = ((2, 3), (3, 2)), ((2, 3, 5), (1, 1, 1), (1, 7, 2), (3, 2, 2))


class Patches:
    """Row, column and frame of every patch, [N].

    Args:
        grids_I3: frames, rows and columns of every image, in patches.
        length: N, the patches of all images.
        side: a token is a square of ``side`` x ``side`` patches.
        row: the patches of every image where each is padded to as many; None: one image follows another.
    """

    def __init__(self, grids_I3: Tensor, length: Any, side: int, row: Any = None) -> None:
        # the image of every patch, and its offset in the image and in the frame
        counts_I = grids_I3.prod(1)
        ends_I, index_N = counts_I.cumsum(0), torch.arange(length, device=grids_I3.device)
        if row is None:
            image_N = (index_N[:, None] >= ends_I).sum(1)
            in_image_N = index_N - (ends_I - counts_I)[image_N]
        else:  # without divisions by a size, which PyTorch's exporter has no operator for
            images_I, each = torch.arange(counts_I.shape[0], device=index_N.device), index_N[:row]
            image_N, in_image_N = (
                images_I[:, None].expand(-1, row).flatten(),
                each.expand(counts_I.shape[0], -1).flatten(),
            )
        heights_N, widths_N = grids_I3[:, 1][image_N], grids_I3[:, 2][image_N]
        #: which patches are no padding
        self.real_N = in_image_N < counts_I[image_N]
        in_frame_N = in_image_N % (heights_N * widths_N)
        frames_I = grids_I3[:, 0]
        #: frame index, counted over all images
        self.frame_N = (frames_I.cumsum(0) - frames_I)[image_N] + in_image_N // (heights_N * widths_N)
        # patches are ordered by token, tokens by row
        token_N, tokens_per_row_N = in_frame_N // side**2, widths_N // side
        self.row_N = token_N // tokens_per_row_N * side + in_frame_N // side % side
        self.column_N = token_N % tokens_per_row_N * side + in_frame_N % side
        self.heights_N, self.widths_N = heights_N, widths_N
        #: index of the first patch of the frame
        self.start_N = index_N - in_frame_N
        self.places_N2 = torch.stack((self.row_N, self.column_N), -1)

    def resampled(self, edge: int, dtype: torch.dtype, *, corners: bool) -> tuple[Tensor, Tensor]:
        """Four rows of a table of ``edge`` x ``edge`` positions for every patch, and their weights, both [N, 4].

        ``corners``: patches at the edges of an image are at those of the table (bilinear, ``align_corners``).
        """
        rows, columns = (
            _between(at_N, sizes_N, edge, dtype, corners=corners)
            for at_N, sizes_N in ((self.row_N, self.heights_N), (self.column_N, self.widths_N))
        )
        indices = rows[0][:, :, None] * edge + columns[0][:, None]
        weights = rows[1][:, :, None] * columns[1][:, None]
        return indices.flatten(1), weights.flatten(1)

    def windows(self, patches: int) -> Tensor:
        """An id of every patch's window of ``patches`` x ``patches`` in its frame, [N]."""
        stride = torch.maximum(self.heights_N.max(), self.widths_N.max())
        return (self.frame_N * stride + self.row_N // patches) * stride + self.column_N // patches


def _between(at_N: Tensor, sizes_N: Tensor, edge: int, dtype: torch.dtype, *, corners: bool) -> tuple[Tensor, Tensor]:
    """The two entries of a table of ``edge`` next to a place among so many, and their weights, both [N, 2]."""
    # a fraction of integers, no less than -1, and one more
    steps_N = (sizes_N - 1).clamp(min=1) if corners else 2 * sizes_N
    places_N = at_N * (edge - 1) if corners else (2 * at_N + 1) * edge - sizes_N
    first_N, rest_N = (places_N + steps_N) // steps_N - 1, (places_N + steps_N) % steps_N
    share_N = rest_N.to(dtype) / steps_N.to(dtype)
    entries = torch.stack((first_N, first_N + 1), -1).clamp(0, edge - 1)
    return entries, torch.stack((1 - share_N, share_N), -1)


class Grids(Tower):
    """The vision tower of Qwen2-VL or Qwen2.5-VL: patches [N, D] and grids [I, 3] to features [K, C]."""

    decoder = MRopeDecoder

    def __init__(self, config: Config, model: Any) -> None:
        vision = model.config.vision_config
        self._side = vision.spatial_merge_size
        super().__init__(config, model)
        inner = getattr(model, "model", model)
        self.visual, self._index = inner.visual, inner.get_rope_index
        self.width = model.get_input_embeddings().weight.shape[-1]
        patches = getattr(vision, "window_size", 0) // self._side // vision.patch_size
        self._window = patches * self._side
        if model.config.model_type == "qwen2_vl":
            self.graph_names = {GRIDS: "grid_thw"}  # the name in transformers.js
        proven = [self._axis_sizes(*sizes) for sizes in _PROVEN]
        self.sizes = Sizes(proven, self._axis_sizes(*_TRACED), {PATCHES: self._side**2})

    def _axis_sizes(self, tokens: int, images: int) -> dict[str, int]:
        return {PATCHES: tokens * self._side**2, IMAGES: images}

    def input_specs(self, config: Config, model: Any) -> list[InputSpec]:
        vision = model.config.vision_config
        width = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
        return [
            InputSpec(name=PIXELS, dtype="float32", axes=[PATCHES, width], role="values"),
            InputSpec(name=GRIDS, dtype="int64", axes=[IMAGES, 3], role="grids", size=self._side),
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [OutputSpec(name=FEATURES, axes=[NUMBER, self.width * self.streams])]

    def example(self, random: torch.Generator) -> Images:
        return self._random_images([(1, *sides) for sides in _EXAMPLE], random)

    def tokens_per_image(self, images: Images) -> int:
        return int(images[GRIDS].prod(1)[0]) // int(self._side**2)

    def more_images(self, random: torch.Generator) -> Images:
        return self._random_images(_MORE_IMAGES, random)

    def _random_images(self, images: Sequence[tuple[int, int, int]], random: torch.Generator) -> Images:
        """Random images with these (frames, rows, columns); rows and columns in tokens."""
        grids_I3 = torch.tensor(images) * torch.tensor([1, self._side, self._side])
        patch = [size for size in self.inputs[0].axes if isinstance(size, int)]
        return {PIXELS: torch.randn(int(grids_I3.prod(1).sum()), *patch, generator=random), GRIDS: grids_I3}

    def model_inputs(self, image_BT: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": image_BT.int()}

    def decoder_inputs(self, image_BT: Tensor, images: Images) -> dict[str, Tensor]:
        positions_3BT, _ = self._index(image_BT.long(), image_BT.int(), images[GRIDS])
        return {POSITIONS: positions_3BT}

    def attention_replaced(self) -> None:
        attention.use(self.visual, attention=attention.PACKED)

    def arguments(self, pixels_ND: Tensor, grids_I3: Tensor) -> dict[str, Any]:
        """What transformers computes of the grids in Python, with an id for every patch in place of lengths."""
        patches = Patches(grids_I3, pixels_ND.shape[0], self._side)
        arguments: dict[str, Any] = {
            "position_ids": patches.places_N2,
            "cu_seqlens": patches.frame_N,
            "max_seqlen": 1,
        }
        if self._window:
            tokens = pixels_ND.shape[0] // self._side**2
            arguments["window_index"] = torch.arange(tokens, device=pixels_ND.device)
            arguments["cu_window_seqlens"], arguments["max_window_seqlen"] = patches.windows(self._window), 1
        if edge := getattr(self.visual, "num_grid_per_side", 0):
            arguments["interp_indices"], arguments["interp_weights"] = patches.resampled(
                edge, pixels_ND.dtype, corners=True
            )
        return arguments

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        arguments = self.arguments(pixel_values, image_grid_thw)
        features_KC: Tensor = self.visual(pixel_values, grid_thw=image_grid_thw, **arguments).pooler_output
        return features_KC
