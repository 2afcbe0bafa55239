"""A model of images and text of transformers, as the three graphs that transformers.js runs.

``vision_encoder.onnx``: images to features. ``embed_tokens.onnx``: ids to embeddings. ``decoder_model_merged.onnx``:
embeddings and our KV cache to logits. The client puts the features in the place of the embeddings of image tokens; the
chain of the graphs alone reads text.

Shape letters: B batch, N images of a row, T tokens, P features of an image, C model size.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.definition.definition import Definition, Part
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.sources.huggingface.config import Config
from posexport.sources.huggingface.directory import Directory
from posexport.sources.in_parts import differ
from posexport.sources.live_module import source_of_module
from posexport.sources.of_definition import spec_of
from posexport.sources.source import Source
from posexport.sources.transformers.agreement import computed_by_ours
from posexport.sources.transformers.decoder import EmbedsDecoder, decoder_source, embeds_decoder
from posexport.sources.transformers.tasks import Task
from posexport.sources.transformers.wrapped import IDS, MASK, PIXELS, Wrapped, limits_of, text_inputs
from posexport.sources.user_module import UserModule, by_name, in_precision
from posexport.sources.with_cache import small
from posexport.spec import BATCH, Axis, InputSpec, LengthContract, OutputSpec, PartSpec, Promises, ProofPlan

VISION, EMBED, DECODER = "vision_encoder.onnx", "embed_tokens.onnx", "decoder_model_merged.onnx"
EMBEDS, FEATURES = "inputs_embeds", "image_features"
IMAGES = "num_images"
_ROWS, _AFTER = 2, 6


class Llava(nn.Module):
    """Images [B, 3, H, W] to features [B, P, C]: a layer of the tower, with or without its first token."""

    #: images have an axis of their own beside the batch
    several = False

    def __init__(self, model: Any) -> None:
        super().__init__()
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


class Idefics(nn.Module):
    """Images [B, N, 3, H, W], none of them padded, to features [B, N, P, C].

    Positions of patches are noted once: transformers counts them by fractions, which a graph rounds otherwise.
    """

    several = True

    def __init__(self, model: Any) -> None:
        super().__init__()
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


#: by model_type
TOWERS: Mapping[str, Callable[[Any], Llava | Idefics]] = {"llava": Llava, "idefics3": Idefics, "smolvlm": Idefics}


class VisionPart(nn.Module):
    """Images to features."""

    def __init__(self, vision: UserModule) -> None:
        super().__init__()
        self.vision = vision

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, ...]:
        answer: tuple[Tensor, ...] = self.vision(pixel_values=pixel_values)
        return answer


class EmbedPart(nn.Module):
    """Ids to embeddings."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed

    def forward(self, input_ids: Tensor) -> tuple[Tensor]:
        return (self.embed(input_ids),)


class DecoderPart(nn.Module):
    """Embeddings and the cache to logits and the cache."""

    def __init__(self, decoder: EmbedsDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, inputs_embeds: Tensor, attention_mask: Tensor, past_key_values: Any, position_ids: Tensor) -> Any:
        return self.decoder(inputs_embeds, attention_mask, past_key_values, position_ids)


class ThroughVision(Definition):
    """Images to features, and tokens behind a cache to embeddings and logits: what the three graphs compute."""

    ordered = True
    causal = True

    def __init__(self, vision: UserModule, embed: nn.Module, decoder: EmbedsDecoder, tokens: InputSpec) -> None:
        super().__init__()
        self.vision, self.embed, self.decoder = vision, embed, decoder
        self._tokens = tokens

    @property
    def encoding(self) -> Encoding:
        """Positions are in transformers' code."""
        return self.decoder.encoding

    @property
    def limits(self) -> LengthContract:
        return self.decoder.limits

    @property
    def plan(self) -> ProofPlan:
        """The decoder's, with one image and with two of a row."""
        several = any(IMAGES in spec.axes for spec in self.vision.inputs)
        sizes = [{IMAGES: 2}, {IMAGES: 1}] if several else []
        return msgspec.structs.replace(self.decoder.plan, proof_sizes=sizes)

    @property
    def promises(self) -> Promises:
        return self.decoder.promises

    @property
    def inputs(self) -> list[InputSpec]:
        _, *others = self.decoder.inputs
        return [*self.vision.inputs, self._tokens, *others]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [*self.decoder.outputs, self._embeds, *self.vision.outputs]

    @property
    def _embeds(self) -> OutputSpec:
        spec = self.decoder.inputs[0]
        return OutputSpec(name=spec.name, axes=spec.axes)

    @property
    def parts(self) -> list[Part]:
        """By the names of files and tensors of transformers.js."""
        modules = VisionPart(self.vision), EmbedPart(self.embed), DecoderPart(self.decoder)
        ports: list[tuple[str, list[InputSpec], list[OutputSpec]]] = [
            (VISION, list(self.vision.inputs), list(self.vision.outputs)),
            (EMBED, [self._tokens], [self._embeds]),
            (DECODER, self.decoder.inputs, self.decoder.outputs),
        ]
        return [
            Part(
                PartSpec(
                    file=file,
                    inputs=inputs,
                    outputs=outputs,
                    input_names={spec.name: spec.name for spec in inputs},
                    output_names={spec.name: spec.name for spec in outputs},
                ),
                module.eval(),
            )
            for module, (file, inputs, outputs) in zip(modules, ports, strict=True)
        ]

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        embeds_BTC = self.embed(inputs[IDS])
        named = {name: x for name, x in inputs.items() if name not in (PIXELS, IDS)}
        return (*self.decoder(embeds_BTC, **named), embeds_BTC, *self.vision(pixel_values=inputs[PIXELS]))


def source(files: Directory, config: Config, model: Any, task: Task) -> tuple[Source, list[str]]:
    """The source of ``model``, and remarks.

    Raises:
        PosexportError: its images are read by code that no graph is made of, or no cache goes through its decoder.
    """
    kind = config.text("model_type")
    if kind not in TOWERS:
        raise PosexportError(
            f"{config.label} says model_type = {kind}, which reads images beside text; of such models "
            f"{', '.join(TOWERS)} are converted"
        )
    tower = TOWERS[kind](model).eval()
    pixels = _pixels(config, model, several=tower.several)
    ids_BT, pixel_values = _sample(model, pixels)
    want = _own(model, ids_BT, pixel_values)
    text = Wrapped(model, task.outputs, text_inputs(model, {IDS, MASK}), numbered=True).eval()
    remarks = computed_by_ours(config.label, text)
    plain = source_of_module(str(files.path), text, label=kind, fingerprint=b"")
    plain = msgspec.structs.replace(plain, limits=limits_of(plain, text))
    decoder = decoder_source(plain, model.config.get_text_config().num_hidden_layers, task.name)
    embed = model.get_input_embeddings()
    definition = ThroughVision(
        _vision(str(files.path), tower, pixels), embed, embeds_decoder(decoder, text, embed, EMBEDS), text.inputs[0]
    ).eval()
    trial, dtype = definition, torch.float32
    if small(model):
        trial, dtype = copy.deepcopy(definition), torch.float64
        in_precision(trial, dtype)
    got = _merged(trial, ids_BT, pixel_values.to(dtype), model.config.image_token_id)
    # transformers' own way has a softmax of float32 in any precision
    if differ(got, want, torch.ones_like(ids_BT), torch.float32):
        raise PosexportError(
            f"{config.label}: {kind} gives other logits for an image than its parts do; it is not converted through "
            "transformers"
        )
    spec = msgspec.structs.replace(spec_of(definition, task.name), encoding=None, encodings=[])
    made = msgspec.structs.replace(
        decoder, **spec.facts, module=definition, promises=definition.promises, parts=definition.parts
    )
    return made, [*remarks, _CLIENT]


_CLIENT = (
    f"a client puts {FEATURES} in the place of the {EMBEDS} of image tokens; the graphs are proven one after another, "
    "the decoder on embeddings of tokens"
)


def _pixels(config: Config, model: Any, *, several: bool) -> InputSpec:
    """Images of the size that the model was trained for."""
    vision = model.config.vision_config
    side, channels = vision.image_size, getattr(vision, "num_channels", 3)
    if not isinstance(side, int):
        raise PosexportError(
            f"{config.label} says vision_config.image_size = {side!r:.60}; it must be a number of pixels"
        )
    images: list[Axis] = [BATCH, IMAGES] if several else [BATCH]
    return InputSpec(name=PIXELS, dtype="float32", axes=[*images, channels, side, side], role="values")


def _vision(argument: str, tower: "Llava | Idefics", pixels: InputSpec) -> UserModule:
    sizes = {BATCH: 2, IMAGES: 2}
    with torch.no_grad():
        features = tower(torch.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in pixels.axes]))
    images: list[Axis] = [BATCH, IMAGES] if tower.several else [BATCH]
    output = OutputSpec(name=FEATURES, axes=[*images, *features.shape[len(images) :]])
    named = _Named(tower).eval()
    return by_name(argument, named, [pixels], [output])


class _Named(nn.Module):
    """A tower whose answer has the output's name."""

    def __init__(self, tower: "Llava | Idefics") -> None:
        super().__init__()
        self.tower = tower

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {FEATURES: self.tower(pixel_values)}


def _sample(model: Any, pixels: InputSpec) -> tuple[Tensor, Tensor]:
    """Tokens with an image each, and the images."""
    random = torch.Generator().manual_seed(0)
    shape = [{BATCH: _ROWS, IMAGES: 1}.get(axis, axis) if isinstance(axis, str) else axis for axis in pixels.axes]
    pixel_values = torch.randn(shape, generator=random)  # type: ignore[arg-type]
    with torch.no_grad():
        per_image = TOWERS[model.config.model_type](model)(pixel_values).shape[-2]
    settings, image = model.config.get_text_config(), model.config.image_token_id
    words = torch.randint(1, settings.vocab_size - 1, (_ROWS, 2 + _AFTER), generator=random)
    words = torch.where(words == image, image - 1 if image else 1, words)
    images = torch.full((_ROWS, per_image), image)
    return torch.cat((words[:, :2], images, words[:, 2:]), 1), pixel_values


def _own(model: Any, ids_BT: Tensor, pixel_values: Tensor) -> Tensor:
    """The logits of transformers' own forward, in float64 where there is memory for a copy."""
    own, dtype = model, torch.float32
    if small(model):
        own, dtype = in_precision(copy.deepcopy(model), torch.float64), torch.float64
    with torch.no_grad():
        logits: Tensor = own(
            input_ids=ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            pixel_values=pixel_values.to(dtype),
            return_dict=True,
        ).logits
    return logits


def _merged(definition: ThroughVision, ids_BT: Tensor, pixel_values: Tensor, image: int) -> Tensor:
    """The logits of the parts, merged as a client does, read in two calls."""
    with torch.no_grad():
        (features,) = definition.vision(pixel_values=pixel_values)
        embeds_BTC = definition.embed(ids_BT)
        embeds_BTC = embeds_BTC.masked_scatter((ids_BT == image)[..., None], features)
        cut, mask_BT = ids_BT.shape[1] - 1, torch.ones_like(ids_BT)
        first = definition.decoder(embeds_BTC[:, :cut], mask_BT[:, :cut])
        last = definition.decoder(embeds_BTC[:, cut:], mask_BT, first[1:])
    return torch.cat((first[0], last[0]), 1)
