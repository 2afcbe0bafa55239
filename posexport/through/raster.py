"""Images of any size with patches in raster order, merged into tokens after the encoder: PaddleOCR-VL's.

Shape letters: N patches of all images, I images, K tokens of all images, C model size.
"""

from typing import Any

from torch import Tensor

from posexport.base.spec import IMAGES, PATCHES, InputSpec
from posexport.checkpoints.config import Config
from posexport.through.grids import GRIDS, Grids, Patches
from posexport.through.inputs import PIXELS


class Raster(Grids):
    """The vision tower of PaddleOCR-VL: patches [N, 3, P, P] and grids [I, 3] to features [K, C]."""

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.projector, self._edge = model.model.projector, self.visual.vision_model.embeddings.num_grid_per_side

    def input_specs(self, config: Config, model: Any) -> list[InputSpec]:
        vision = model.config.vision_config
        axes = [PATCHES, vision.num_channels, vision.patch_size, vision.patch_size]
        return [
            InputSpec(name=PIXELS, dtype="float32", axes=axes, role="values"),
            InputSpec(name=GRIDS, dtype="int64", axes=[IMAGES, 3], role="grids", size=self._side),
        ]

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        # rows and columns of the patches in raster order, and the raster index of every patch in token order
        patches, tokens = (Patches(image_grid_thw, pixel_values.shape[0], side) for side in (1, self._side))
        indices, weights = patches.resampled(self._edge, pixel_values.dtype, corners=False)
        states_NC = self.visual(
            pixel_values[None],
            grid_thw=image_grid_thw,
            position_ids=patches.places_N2,
            cu_seqlens=patches.frame_N,
            max_seqlen=1,
            interp_indices=indices,
            interp_weights=weights,
        ).last_hidden_state
        projector, order_N = self.projector, tokens.start_N + tokens.row_N * tokens.widths_N + tokens.column_N
        merged_KC = projector.pre_norm(states_NC)[order_N].reshape(-1, self._side**2 * states_NC.shape[-1])
        features_KC: Tensor = projector.linear_2(projector.act(projector.linear_1(merged_KC)))
        return features_KC
