"""Gemma 4's images, of patches at places of a grid, and its embeddings of each token for every layer.

Shape letters: B images, P patches of an image, L tokens of an image, C model size; of the decoder T tokens.
"""

from typing import Any

import torch
from torch import Tensor

from posexport.base.spec import BATCH, PATCHES, SEQUENCE, InputSpec, OutputSpec
from posexport.checkpoints.config import Config
from posexport.through.blocks import BLOCKS, BlocksDecoder
from posexport.through.inputs import PIXELS, TYPES
from posexport.through.towers import FEATURES, EmbedPart, Images, Sizes, Tower

PLACES, PER_LAYER = "image_position_ids", "per_layer_inputs"
#: columns and rows of the example's images in tokens, and of images of other forms, the last one with padding
_EXAMPLE, _MORE_IMAGES = ((3, 2), (2, 3)), ((6, 1), (3, 2), (2, 2))
#: tokens of an image that a graph is traced with, and proven with
_TRACED, _PROVEN = 5, (1, 4, 6, 9)


class WindowBlocksDecoder(BlocksDecoder):
    """Tokens of an image attend to each other in layers with a sliding window alone."""

    windows_alone = True


class PerLayerEmbedPart(EmbedPart):
    """Token ids to embeddings for the input and for every layer; image tokens get the padding token's."""

    names = ("inputs_embeds", PER_LAYER)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.model, self._padding = model.get_decoder(), model.config.get_text_config().pad_token_id
        stated = (getattr(model.config, f"{kind}_token_id", None) for kind in ("image", "video", "audio"))
        self._media = [number for number in stated if number is not None]

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        ids_BT = input_ids
        for number in self._media:
            ids_BT = torch.where(ids_BT == number, self._padding, ids_BT)
        return self.embed(ids_BT), self.model.get_per_layer_inputs(ids_BT, None)


class Gemma4(Tower):
    """Patches [B, P, D] at places [B, P, 2], column and row or -1 for padding, to features [B, L, C].

    The features of padding are the last ones of an image.
    """

    def __init__(self, config: Config, model: Any) -> None:
        self._side = model.config.vision_config.pooling_kernel_size
        super().__init__(config, model)
        self.tower, self.project = model.model.vision_tower, model.model.embed_vision
        text = model.config.get_text_config()
        if text.use_bidirectional_attention == "vision":
            self.decoder, self.more = WindowBlocksDecoder, [BLOCKS]
        if text.hidden_size_per_layer_input:
            axes = [BATCH, SEQUENCE, text.num_hidden_layers, text.hidden_size_per_layer_input]
            self.embed = PerLayerEmbedPart
            self.more = [*self.more, InputSpec(name=PER_LAYER, dtype="float32", axes=axes, role="values")]
        proven = [{PATCHES: tokens * self._side**2} for tokens in _PROVEN]
        self.sizes = Sizes(proven, {PATCHES: _TRACED * self._side**2}, {PATCHES: self._side**2})

    def input_specs(self, config: Config, model: Any) -> list[InputSpec]:
        vision, axes = model.config.vision_config, [BATCH, PATCHES]
        most = [vision.position_embedding_size] * 2
        return [
            InputSpec(name=PIXELS, dtype="float32", axes=[*axes, 3 * vision.patch_size**2], role="values"),
            InputSpec(name=PLACES, dtype="int64", axes=[*axes, 2], role="places", size=self._side, column_sizes=most),
        ]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [
            OutputSpec(name=FEATURES, axes=[BATCH, "num_image_tokens", self.project.embedding_projection.out_features])
        ]

    def example(self, random: torch.Generator) -> Images:
        return self._random_images(_EXAMPLE, random)

    def more_images(self, random: torch.Generator) -> Images:
        return self._random_images(_MORE_IMAGES, random)

    def _random_images(self, forms: Any, random: torch.Generator) -> Images:
        """Random images with these (columns, rows) in tokens, padded at their ends."""
        grids = [
            torch.stack(torch.meshgrid(*(torch.arange(n * self._side) for n in form), indexing="xy"), -1).reshape(-1, 2)
            for form in forms
        ]
        places_BP2 = torch.nn.utils.rnn.pad_sequence(grids, batch_first=True, padding_value=-1)
        width = self.inputs[0].axes[-1]
        assert isinstance(width, int)
        return {PIXELS: torch.rand(*places_BP2.shape[:2], width, generator=random), PLACES: places_BP2}

    def unpadded(self, features: Tensor, images: Images) -> Tensor:
        counts_B = (images[PLACES][..., 0] >= 0).sum(1) // self._side**2
        return features[torch.arange(features.shape[1]) < counts_B[:, None]]

    def model_inputs(self, image_BT: Tensor) -> dict[str, Tensor]:
        return {"mm_token_type_ids": image_BT.int()}

    def decoder_inputs(self, image_BT: Tensor, images: Images) -> dict[str, Tensor]:
        return {TYPES: image_BT.long()} if BLOCKS in self.more else {}

    def forward(self, pixel_values: Tensor, image_position_ids: Tensor) -> Tensor:
        places_BP2, padding_BP = image_position_ids, (image_position_ids == -1).all(-1)
        x_BPC = self.tower.patch_embedder(pixel_values, places_BP2, padding_BP)
        states = self.tower.encoder(
            inputs_embeds=x_BPC, attention_mask=~padding_BP, pixel_position_ids=places_BP2
        ).last_hidden_state.masked_fill(padding_BP[..., None], 0.0)
        # the mean of every square of patches, in the order of rows
        side, cells_BP2 = self._side, places_BP2.clamp(min=0) // self._side
        columns_B1 = (places_BP2[..., 0].amax(1, keepdim=True).clamp(min=0) + 1) // side
        cell_BP = cells_BP2[..., 0] + columns_B1 * cells_BP2[..., 1]
        tokens = torch.arange(pixel_values.shape[1] // side**2, device=cell_BP.device)
        means_BLC = (cell_BP[:, None] == tokens[:, None]).to(states.dtype) @ states / side**2
        pooled_BLC = means_BLC * states.shape[-1] ** 0.5
        if self.tower.config.standardize:
            pooled_BLC = (pooled_BLC - self.tower.std_bias) * self.tower.std_scale
        features: Tensor = self.project(inputs_embeds=pooled_BLC)
        return features
