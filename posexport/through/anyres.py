"""LLaVA-NeXT and LLaVA-OneVision: the tiles of a picture, whose features a client puts into one list.

Which features of tiles are padding depends on the size of the picture, so that their number does too. The graph returns
all features of every tile; `posexport.run.tiles.packed` chooses and orders them.

Shape letters: B batch, N tiles of a picture, P features of a tile, C model size.
"""

from typing import Any

import torch
from torch import Tensor

from posexport.base.spec import IMAGES, AnyResRules
from posexport.checkpoints.config import Config
from posexport.errors import PosexportError
from posexport.run.tiles import IMAGE_SIZES, best_size, packed
from posexport.through.inputs import PIXELS
from posexport.through.towers import ROWS, Images, Llava, Sizes

_ONEVISION, _MOST = "llava_onevision", "anyres_max_"


class AnyRes(Llava):
    """Tiles [B, N, 3, H, W] to features [B, N, P + 1, C]; the last of every tile is the vector of a new line."""

    multiple_images = True
    sizes = Sizes(({IMAGES: 2}, {IMAGES: 1}, {IMAGES: 5}))

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.newline_C, self.rules = model.model.image_newline, anyres_rules(config, model)

    def example(self, random: torch.Generator) -> Images:
        edge = self.rules.tile_size
        return self._random_images([(edge, 2 * edge - 3)] * ROWS, random)

    def more_images(self, random: torch.Generator) -> Images:
        edge = self.rules.tile_size
        forms = ((edge, edge), (edge // 3 + 1, 2 * edge), (3 * edge, edge + 1), (3 * edge, 4 * edge))
        return self._random_images(forms, random)

    def _random_images(self, forms: Any, random: torch.Generator) -> Images:
        """Random tiles of pictures with these heights and widths in pixels."""
        grids = [[size // self.rules.tile_size for size in best_size(form, self.rules.sizes)] for form in forms]
        most = max(rows * columns for rows, columns in grids) + 1
        tile = [size for size in self.inputs[0].axes if isinstance(size, int)]
        pixels = torch.randn(len(forms), most, *tile, generator=random)
        return {PIXELS: pixels, IMAGE_SIZES: torch.tensor(list(forms))}

    def tokens_per_image(self, images: Images) -> int:
        return len(self.placed(self(images[PIXELS]), images)) // len(images[PIXELS])

    def unpadded(self, features: Tensor, images: Images) -> Tensor:
        return self.placed(features, images)

    def placed(self, features: Tensor, images: Images) -> Tensor:
        pairs = zip(features.numpy(), images[IMAGE_SIZES].tolist(), strict=True)
        return torch.cat([torch.from_numpy(packed(features_NPC, size, self.rules)) for features_NPC, size in pairs])

    def forward(self, pixel_values: Tensor) -> Tensor:
        features_TPC = super().forward(pixel_values.flatten(0, 1))
        ends_T1C = self.newline_C.expand(features_TPC.shape[0], 1, -1)
        all_TPC = torch.cat((features_TPC, ends_T1C), 1)
        features: Tensor = all_TPC.unflatten(0, pixel_values.shape[:2])  # type: ignore[no-untyped-call]
        return features


def anyres_rules(config: Config, model: Any) -> AnyResRules:
    """The rules by which the ``model`` of a configuration puts features of tiles into one list.

    Raises:
        PosexportError: sizes that are no whole tiles, or a number of tiles that transformers does not read either.
    """
    settings, tile = model.config, model.config.vision_config.image_size
    sizes = [(height, width) for height, width in settings.image_grid_pinpoints]
    if odd := [size for size in sizes if size[0] % tile or size[1] % tile]:
        raise PosexportError(
            f"{config.label} says image_grid_pinpoints with {list(odd[0])}; they must be multiples of "
            f"vision_config.image_size = {tile}"
        )
    if settings.model_type != _ONEVISION:
        return AnyResRules(sizes=sizes, tile_size=tile)
    stated = settings.vision_aspect_ratio
    most = stated.removeprefix(_MOST)
    if not most.isdigit():
        raise PosexportError(
            f"{config.label} says vision_aspect_ratio = {stated!r:.60}; it must be {_MOST} and a number of tiles, such "
            f"as {_MOST}9"
        )
    return AnyResRules(sizes=sizes, tile_size=tile, most_tiles=int(most), single_only=True)
