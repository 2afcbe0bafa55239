"""Vision towers of vision-language models: their inputs, and the example images of the conversion.

Shape letters: B batch, N images of a row, T tokens, P features of an image, C model size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, IMAGES, Axis, InputSpec, OutputSpec
from posexport.checkpoints.config import Config
from posexport.errors import PosexportError
from posexport.through.blocks import BLOCKS, BlocksDecoder
from posexport.through.decoder import EmbedsDecoder
from posexport.through.inputs import PIXELS, TYPES

FEATURES = "image_features"
#: batch size of the example, with one image per row
ROWS = 2

Images = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the dynamic axes of images other than the batch.

    Attributes:
        proven: sizes of further proof points.
        traced: sizes of the traced example.
        steps: every size is a multiple of this number.
    """

    proven: Sequence[dict[str, int]] = ()
    traced: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)


class EmbedPart(nn.Module):
    """Maps token ids to embeddings, and to what else the decoder takes of them: the inputs of the decoder `names`."""

    names: Sequence[str] = ("inputs_embeds",)

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed = model.get_input_embeddings()

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        return (self.embed(input_ids),)


class Tower(nn.Module):
    """Maps images [B, 3, H, W] to features [B, P, C]; the arguments of ``forward`` are named as in ``inputs``."""

    #: file name of the graph, name of its output, and key of config.json for the placeholder token
    file, features, token = "vision_encoder.onnx", FEATURES, "image_token_id"
    #: a row has several images: [B, N, 3, H, W]
    multiple_images = False
    sizes = Sizes()
    #: names of inputs of the exported graph that differ from those in ``inputs``
    graph_names: Mapping[str, str] = MappingProxyType({})
    decoder: type[EmbedsDecoder] = EmbedsDecoder
    #: further inputs of the decoder
    more: Sequence[InputSpec] = ()
    embed: type[EmbedPart] = EmbedPart
    #: number of vectors of the model's size in an embedding and in a feature, concatenated
    streams = 1

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__()
        self.inputs = self.input_specs(config, model)

    def input_specs(self, config: Config, model: Any) -> list[InputSpec]:
        """The image inputs: by default pixels, with the image size that the model was trained for."""
        vision = model.config.vision_config
        side, channels = vision.image_size, getattr(vision, "num_channels", 3)
        side = side[0] if isinstance(side, list | tuple) and len({*side}) == 1 else side
        if not isinstance(side, int):
            raise PosexportError(
                f"{config.label} says vision_config.image_size = {side!r:.60}; it must be a number of pixels"
            )
        return [InputSpec(name=PIXELS, dtype="float32", axes=[*self._image_axes, channels, side, side], role="values")]

    @property
    def _image_axes(self) -> list[Axis]:
        return [BATCH, IMAGES] if self.multiple_images else [BATCH]

    @property
    def outputs(self) -> list[OutputSpec]:
        """The features; a call with the example shows their sizes."""
        images = self.example(torch.Generator())
        with torch.no_grad():
            features = self(**{spec.name: images[spec.name] for spec in self.inputs})
        return [OutputSpec(name=self.features, axes=[*self._image_axes, *features.shape[len(self._image_axes) :]])]

    def example(self, random: torch.Generator) -> Images:
        """Images for `ROWS` rows: one image per row, all with the same number of features."""
        sizes = {BATCH: ROWS, IMAGES: 1}
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in self.inputs[0].axes]
        return {self.inputs[0].name: torch.randn(shape, generator=random)}

    def more_images(self, random: torch.Generator) -> Images:
        """Further images for a comparison of features; empty if `example` covers all cases."""
        return {}

    def unpadded(self, features: Tensor, images: Images) -> Tensor:
        """The features of ``images`` as transformers returns them, all images in one row where padding differs."""
        return features

    def placed(self, features: Tensor, images: Images) -> Tensor:
        """The features that a client puts in the places of the tokens of ``images``."""
        return features

    def tokens_per_image(self, images: Images) -> int:
        """The number of tokens per image of the example."""
        return int(self(**images).shape[-2])

    def model_inputs(self, image_BT: Tensor) -> dict[str, Tensor]:
        """Arguments of transformers' forward other than ids and images; ``image_BT`` is True at image tokens."""
        return {}

    def decoder_inputs(self, image_BT: Tensor, images: Images) -> dict[str, Tensor]:
        """Decoder inputs of every token other than embeddings and mask."""
        return {}

    def of_texts(self, model: Any) -> nn.Module:
        """The part of ``model`` that maps tokens or their embeddings to logits."""
        whole: nn.Module = model
        return whole

    def attention_replaced(self) -> None:
        """Called after the model's attention was replaced by posexport's."""


class Llava(Tower):
    """Hidden states of one or more layers of a CLIP tower, with or without the class token, then the projector."""

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.tower, self.projector = model.model.vision_tower, model.model.multi_modal_projector
        settings = model.config
        indices, depth = settings.vision_feature_layer, getattr(settings.vision_config, "num_hidden_layers", None)
        indices = [indices] if isinstance(indices, int) else indices
        named = [pair for pair in self.tower.named_modules() if isinstance(pair[1], nn.ModuleList)]
        lists = {path: layers for path, layers in named if len(layers) == depth}
        self._path: str = next(iter(lists), "")
        # a layer by itself, since a reduced model has others before it
        self._states = [_state(lists[self._path], index) if lists else index for index in indices]
        self._first = 1 if settings.vision_feature_select_strategy == "default" else 0

    def forward(self, pixel_values: Tensor) -> Tensor:
        states = self.tower(pixel_values, output_hidden_states=True, return_dict=True).hidden_states
        after = {layer: index for index, layer in enumerate(self.tower.get_submodule(self._path).children(), 1)}
        chosen = [states[after.get(state, state)][:, self._first :] for state in self._states]
        features_BPC: Tensor = self.projector(torch.cat(chosen, -1))
        return features_BPC


def _state(layers: nn.ModuleList, index: int) -> Any:
    """The layer after which a hidden state is, marked as one; -1 for the last one and 0 for the embeddings."""
    after = index % (len(layers) + 1)
    if not 0 < after < len(layers):
        return -1 if after else 0
    layer: Any = layers[after - 1]
    layer.gives_features = True
    return layer


class Features(Tower):
    """What transformers' ``get_image_features`` returns for images of one size."""

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.model = getattr(model, "model", model)

    def forward(self, pixel_values: Tensor) -> Tensor:
        features_BPC: Tensor = self.model.get_image_features(pixel_values=pixel_values, return_dict=True).pooler_output
        return features_BPC


class Queries(Features):
    """Features of queries that read an image; the language model is a separate model (BLIP-2, arXiv:2301.12597)."""

    def of_texts(self, model: Any) -> nn.Module:
        language: nn.Module = model.language_model
        return language


class Gemma3(Tower):
    """The tower's last hidden states, pooled. The decoder's attention among tokens of an image is bidirectional."""

    decoder = BlocksDecoder
    more = (BLOCKS,)

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        self.tower, self.projector = model.model.vision_tower, model.model.multi_modal_projector

    def forward(self, pixel_values: Tensor) -> Tensor:
        features_BPC: Tensor = self.projector(self.tower(pixel_values, return_dict=True).last_hidden_state)
        return features_BPC

    def model_inputs(self, image_BT: Tensor) -> dict[str, Tensor]:
        return {TYPES: image_BT.long()}

    def decoder_inputs(self, image_BT: Tensor, images: Images) -> dict[str, Tensor]:
        return self.model_inputs(image_BT)


class Idefics(Tower):
    """Images [B, N, 3, H, W] without padding, to features [B, N, P, C].

    Position ids of patches are a buffer: transformers computes them from fractions, which a graph may round otherwise.
    """

    multiple_images = True
    sizes = Sizes(({IMAGES: 2}, {IMAGES: 1}))

    def __init__(self, config: Config, model: Any) -> None:
        super().__init__(config, model)
        vision_model = model.model.vision_model
        self.embeddings, self.encoder = vision_model.embeddings, vision_model.encoder
        self.last_norm = vision_model.post_layernorm
        self.connector = model.model.connector
        vision = model.config.vision_config
        side = vision.image_size // vision.patch_size
        # record the position ids of one image
        recorded: list[Tensor] = []
        embedding = self.embeddings.position_embedding
        hook = embedding.register_forward_pre_hook(lambda _, args: recorded.append(args[0]))
        with torch.no_grad():
            image = torch.zeros(1, 3, vision.image_size, vision.image_size)
            self.embeddings(image, torch.ones(1, side, side, dtype=torch.bool))
        hook.remove()
        self.register_buffer("positions_1P", recorded[0], persistent=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        patches = self.embeddings.patch_embedding(pixel_values.flatten(0, 1)).flatten(2).mT
        embedded = patches + self.embeddings.position_embedding(self.positions_1P)
        states = self.encoder(inputs_embeds=embedded, attention_mask=None).last_hidden_state
        features: Tensor = self.connector(self.last_norm(states)).unflatten(0, pixel_values.shape[:2])
        return features
