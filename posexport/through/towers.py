"""The towers of models of images and text: what they read, and what they are tried with.

Shape letters: B batch, N images of a row, T tokens, P features of an image, C model size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from posexport.checkpoints.config import Config
from posexport.errors import PosexportError
from posexport.spec import BATCH, IMAGES, Axis, InputSpec, OutputSpec
from posexport.through.blocks import BlocksDecoder
from posexport.through.decoder import EmbedsDecoder
from posexport.through.wrapped import PIXELS, TYPES

FEATURES = "image_features"
#: rows that a tower is tried with, an image each
ROWS = 2

Images = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Of the axes of images beside the batch: to prove at, to trace at, and what they are multiples of."""

    proven: Sequence[dict[str, int]] = ()
    traced: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)


class Tower(nn.Module):
    """Images [B, 3, H, W] to features, [B, P, C]; its arguments have the names of ``inputs``."""

    #: images have an axis of their own beside the batch
    several = False
    sizes = Sizes()
    #: names in the graph that are others than in the whole
    ports: Mapping[str, str] = MappingProxyType({})
    decoder: type[EmbedsDecoder] = EmbedsDecoder

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__()
        self.inputs = self.read(config, model)

    def read(self, config: Config, model: Any) -> list[InputSpec]:
        """Images of the size that the model was trained for."""
        vision = model.config.vision_config
        side, channels = vision.image_size, getattr(vision, "num_channels", 3)
        if not isinstance(side, int):
            raise PosexportError(
                f"{config.label} says vision_config.image_size = {side!r:.60}; it must be a number of pixels"
            )
        return [InputSpec(name=PIXELS, dtype="float32", axes=[*self._images, channels, side, side], role="values")]

    @property
    def _images(self) -> list[Axis]:
        return [BATCH, IMAGES] if self.several else [BATCH]

    @property
    def outputs(self) -> list[OutputSpec]:
        """Found by a call."""
        with torch.no_grad():
            features = self(**self.example(torch.Generator()))
        return [OutputSpec(name=FEATURES, axes=[*self._images, *features.shape[len(self._images) :]])]

    def example(self, random: torch.Generator) -> Images:
        """The images of `ROWS` rows, one each, of as many features."""
        sizes = {BATCH: ROWS, IMAGES: 1}
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in self.inputs[0].axes]
        return {PIXELS: torch.randn(shape, generator=random)}

    def further(self, random: torch.Generator) -> Images:
        """More images, of which the features alone are compared; nothing: those of `example` say all."""
        return {}

    def tokens(self, images: Images) -> int:
        """How many tokens each image of the example takes."""
        return int(self(**images).shape[-2])

    def beside(self, image_BT: Tensor) -> dict[str, Tensor]:
        """What transformers' own forward takes beside ids and images; ``image_BT``: which tokens are of one."""
        return {}

    def given(self, image_BT: Tensor, images: Images) -> dict[str, Tensor]:
        """What the decoder takes of tokens beside embeddings and mask."""
        return {}

    def ready(self) -> None:
        """Called once the model's attention is posexport's."""


class Llava(Tower):
    """A layer of the tower, with or without its first token."""

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        own = model.model
        self.tower, self.projector = own.vision_tower, own.multi_modal_projector
        settings = model.config
        layers = settings.vision_feature_layer
        self._layers = [layers] if isinstance(layers, int) else list(layers)
        self._first = 1 if settings.vision_feature_select_strategy == "default" else 0

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = self.tower(pixel_values, output_hidden_states=True, return_dict=True).hidden_states
        chosen = [states[layer][:, self._first :] for layer in self._layers]
        features_BPC: Tensor = self.projector(torch.cat(chosen, -1))
        return features_BPC


class Gemma3(Tower):
    """The tower's last states, pooled. Tokens of an image attend to one another in the decoder."""

    decoder = BlocksDecoder

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.tower, self.projector = model.model.vision_tower, model.model.multi_modal_projector

    def forward(self, pixel_values: Tensor) -> Tensor:
        features_BPC: Tensor = self.projector(self.tower(pixel_values, return_dict=True).last_hidden_state)
        return features_BPC

    def beside(self, image_BT: Tensor) -> dict[str, Tensor]:
        return {TYPES: image_BT.long()}

    def given(self, image_BT: Tensor, images: Images) -> dict[str, Tensor]:
        return self.beside(image_BT)


class Idefics(Tower):
    """Images [B, N, 3, H, W], none of them padded, to features [B, N, P, C].

    Positions of patches are noted once: transformers counts them by fractions, which a graph rounds otherwise.
    """

    several = True
    sizes = Sizes(({IMAGES: 2}, {IMAGES: 1}))

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        own = model.model.vision_model
        self.embeddings, self.encoder, self.last_norm = own.embeddings, own.encoder, own.post_layernorm
        self.connector = model.model.connector
        vision = model.config.vision_config
        side = vision.image_size // vision.patch_size
        noted: list[Tensor] = []
        hook = own.embeddings.position_embedding.register_forward_pre_hook(lambda _, given: noted.append(given[0]))
        with torch.no_grad():
            image = torch.zeros(1, 3, vision.image_size, vision.image_size)
            own.embeddings(image, torch.ones(1, side, side, dtype=torch.bool))
        hook.remove()
        self.register_buffer("positions_1P", noted[0], persistent=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches = self.embeddings.patch_embedding(pixel_values.flatten(0, 1)).flatten(2).mT
        embedded = patches + self.embeddings.position_embedding(self.positions_1P)
        states = self.encoder(inputs_embeds=embedded, attention_mask=None).last_hidden_state
        features: Tensor = self.connector(self.last_norm(states)).unflatten(0, pixel_values.shape[:2])
        return features
