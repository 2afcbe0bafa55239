"""Images that the first layers of a decoder read too (DeepStack, arXiv:2406.04334): Qwen3-VL's.

The vectors that these layers add to image tokens are appended to the image features; zeros are appended to the
embeddings of text. Clients need no change.

Shape letters: B batch, T tokens, K tokens of all images, C model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posexport.checkpoints.config import Config
from posexport.nn.caching import Reach
from posexport.nn.calling import carried, carrying
from posexport.through.grids import Grids
from posexport.through.mrope import MRopeDecoder
from posexport.through.towers import EmbedPart, Images


@dataclass(frozen=True)
class _Added:
    """What the first layers of a call add to their states."""

    by_layer: Sequence[Tensor]


class DeepstackEmbedPart(EmbedPart):
    """Token embeddings with appended zeros."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._zeros = len(model.config.vision_config.deepstack_visual_indexes) * self.embed.weight.shape[-1]

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        return (F.pad(self.embed(input_ids), (0, self._zeros)),)


class DeepstackDecoder(MRopeDecoder):
    """Decoder of embeddings with appended vectors, which the first layers add to their outputs."""

    def _logits(self, ids_BT: Tensor, mask_BT: Tensor, at: Reach, **more: Tensor) -> Tensor:
        width = self.user.inputs[0].axes[-1]
        assert isinstance(width, int)
        x_BTC, *added = torch.split(ids_BT, width, -1)
        with carrying(_Added(added), _Added):
            return super()._logits(x_BTC, mask_BT, at, **more)


class Deepstack(Grids):
    """The vision tower of Qwen3-VL: patches and grids to features, with the vectors of the decoder's first layers."""

    decoder, embed = DeepstackDecoder, DeepstackEmbedPart

    def __init__(self, config: Config, model: Any) -> None:
        self.streams = 1 + len(model.config.vision_config.deepstack_visual_indexes)
        super().__init__(config, model)
        self._layers = list(model.model.language_model.layers)[: self.streams - 1]

    def attention_replaced(self) -> None:
        super().attention_replaced()
        for number, layer in enumerate(self._layers):
            layer.register_forward_hook(_Add(number))

    def unpadded(self, features: Tensor, images: Images) -> Tensor:
        return features[:, : self.width]

    def forward(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        arguments = self.arguments(pixel_values, image_grid_thw)
        seen = self.visual(pixel_values, grid_thw=image_grid_thw, **arguments)
        return torch.cat((seen.pooler_output, *seen.deepstack_features), -1)


@dataclass(frozen=True)
class _Add:
    """A hook that adds the features of a layer to its states."""

    number: int

    def __call__(self, _: Any, __: Any, states_BTC: Tensor) -> Tensor:
        added = carried(_Added)
        return states_BTC + added.by_layer[self.number] if added is not None and added.by_layer else states_BTC
