"""A model of images and text of transformers, as the three graphs that transformers.js runs.

``vision_encoder.onnx``: images to features. ``embed_tokens.onnx``: ids to embeddings. ``decoder_model_merged.onnx``:
embeddings and our KV cache to logits. The client puts the features in the place of the embeddings of image tokens; the
chain of the graphs alone reads text.

Shape letters: B batch, N images of a row, T tokens, P features of an image, C model size.
"""

import copy
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.checkpoints.opened import Checkpoint
from posexport.definition.definition import Definition, Part
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.modules.in_parts import differ
from posexport.modules.user_module import UserModule, by_name
from posexport.modules.with_cache import small
from posexport.sources.definition_facts import model_of
from posexport.sources.source import Model
from posexport.spec import InputSpec, LengthContract, OutputSpec, PartSpec, Promises, ProofPlan
from posexport.through.agreement import computed_by_ours
from posexport.through.decoder import EmbedsDecoder, decoder_source, embeds_decoder
from posexport.through.grids import Grids
from posexport.through.tasks import Task
from posexport.through.towers import FEATURES, ROWS, Gemma3, Idefics, Images, Llava, Tower
from posexport.through.wrapped import IDS, MASK, TYPES, Wrapped, by_trial, text_inputs
from posexport.torch_fixes.module_precision import in_precision

VISION, EMBED, DECODER = "vision_encoder.onnx", "embed_tokens.onnx", "decoder_model_merged.onnx"
EMBEDS = "inputs_embeds"
#: words behind an image of the example
_AFTER = 6
#: by model_type
TOWERS: Mapping[str, type[Tower]] = {
    "gemma3": Gemma3,
    "idefics3": Idefics,
    "llava": Llava,
    "qwen2_5_vl": Grids,
    "qwen2_vl": Grids,
    "smolvlm": Idefics,
}


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

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        past_key_values: Any,
        position_ids: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> Any:
        more = {} if token_type_ids is None else {TYPES: token_type_ids}
        return self.decoder(inputs_embeds, attention_mask, past_key_values, position_ids, **more)


class ThroughVision(Definition):
    """Images to features, and tokens behind a cache to embeddings and logits: what the three graphs compute.

    ``vision`` is ``tower`` by the names of its inputs.
    """

    ordered = True
    causal = True

    def __init__(
        self, vision: UserModule, tower: Tower, embed: nn.Module, decoder: EmbedsDecoder, tokens: InputSpec
    ) -> None:
        super().__init__()
        self.vision, self.embed, self.decoder = vision, embed, decoder
        self._tokens, self._ports = tokens, dict(tower.ports)
        self._sizes = tower.sizes

    @property
    def encoding(self) -> Encoding:
        """Positions are in transformers' code."""
        return self.decoder.encoding

    @property
    def limits(self) -> LengthContract:
        """The decoder's, and those of the images."""
        limits = self.decoder.limits
        return msgspec.structs.replace(limits, size_steps={**limits.size_steps, **self._sizes.steps})

    @property
    def plan(self) -> ProofPlan:
        """The decoder's, with the sizes of images."""
        plan, sizes = self.decoder.plan, self._sizes
        traced = {**plan.trace_sizes, **sizes.traced}
        return msgspec.structs.replace(plan, proof_sizes=list(sizes.proven), trace_sizes=traced)

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
        vision = self.vision
        images = [msgspec.structs.replace(spec, name=self._port(spec.name)) for spec in vision.inputs]
        modules = (
            by_name(vision.argument, _Renamed(vision.module, self._ports), images, vision.outputs),
            EmbedPart(self.embed),
            DecoderPart(self.decoder),
        )
        ports: list[tuple[str, list[InputSpec], list[OutputSpec]]] = [
            (VISION, list(vision.inputs), list(vision.outputs)),
            (EMBED, [self._tokens], [self._embeds]),
            (DECODER, self.decoder.inputs, self.decoder.outputs),
        ]
        return [
            Part(
                PartSpec(
                    file=file,
                    inputs=[msgspec.structs.replace(spec, name=self._port(spec.name)) for spec in inputs],
                    outputs=outputs,
                    input_names={self._port(spec.name): spec.name for spec in inputs},
                    output_names={spec.name: spec.name for spec in outputs},
                ),
                module.eval(),
            )
            for module, (file, inputs, outputs) in zip(modules, ports, strict=True)
        ]

    def _port(self, name: str) -> str:
        """What an input is called in its graph."""
        return self._ports.get(name, name)

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        embeds_BTC = self.embed(inputs[IDS])
        images = {spec.name: inputs[spec.name] for spec in self.vision.inputs}
        named = {name: x for name, x in inputs.items() if name != IDS and name not in images}
        return (*self.decoder(embeds_BTC, **named), embeds_BTC, *self.vision(**images))


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """The ``model`` of images and text of a checkpoint, as three graphs.

    Raises:
        PosexportError: its images are read by code that no graph is made of, or no cache goes through its decoder.
    """
    config = checkpoint.config
    kind = config.text("model_type")
    if kind not in TOWERS:
        raise PosexportError(
            f"{config.label} says model_type = {kind}, which reads images beside text; of such models "
            f"{', '.join(TOWERS)} are converted"
        )
    tower = TOWERS[kind](config, model).eval()
    ids_BT, images = _sample(model, tower)
    image_BT = ids_BT == model.config.image_token_id
    further = tower.further(torch.Generator().manual_seed(1))
    features = _features(model, further)
    own = _own(model, ids_BT, {**images, **tower.beside(image_BT)})
    text = Wrapped(model, task.outputs, text_inputs(model, {IDS, MASK}), numbered=True).eval()
    remarks = computed_by_ours(config.label, text)
    tower.ready()
    without_cache = by_trial(checkpoint, text, task.name, [*remarks, _CLIENT])
    decoder = decoder_source(without_cache, model.config.get_text_config().num_hidden_layers, task.name)
    embed = model.get_input_embeddings()
    embeds = embeds_decoder(decoder, text, embed, EMBEDS, tower.decoder)
    vision = _vision(str(checkpoint.files.path), tower)
    definition = ThroughVision(vision, tower, embed, embeds, text.inputs[0]).eval()
    trial, dtype = definition, torch.float32
    if small(model):
        trial, dtype = copy.deepcopy(definition), torch.float64
        in_precision(trial, dtype)
    got = _merged(trial, ids_BT, image_BT, _in(images, dtype), tower.given(image_BT, images))
    pairs = [("logits for an image", got, own)]
    with torch.no_grad():
        pairs += [("features for several images", trial.vision(**_in(further, dtype))[0], own) for own in features]
    for what, ours, theirs in pairs:
        # transformers' own way has a softmax of float32 in any precision
        if differ(ours, theirs, torch.ones(theirs.shape[:-1]), torch.float32):
            raise PosexportError(
                f"{config.label}: {kind} gives other {what} than its parts do; it is not converted through transformers"
            )
    return model_of(definition, task.name, trial=decoder)


_CLIENT = (
    f"a client puts {FEATURES} in the place of the {EMBEDS} of image tokens; the graphs are proven one after another, "
    "the decoder on embeddings of tokens"
)


def _vision(argument: str, tower: Tower) -> UserModule:
    return by_name(argument, _Named(tower).eval(), tower.inputs, tower.outputs)


class _Renamed(nn.Module):
    """A module whose arguments have other names: ``ports``, by its own."""

    def __init__(self, module: nn.Module, ports: Mapping[str, str]) -> None:
        super().__init__()
        self.module = module
        self._names = {port: name for name, port in ports.items()}

    def forward(self, **given: Tensor) -> dict[str, Tensor]:
        answer: dict[str, Tensor] = self.module(**{self._names.get(name, name): x for name, x in given.items()})
        return answer


class _Named(nn.Module):
    """A tower whose answer has the output's name."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, **images: Tensor) -> dict[str, Tensor]:
        return {FEATURES: self.tower(**images)}


def _sample(model: Any, tower: Tower) -> tuple[Tensor, Images]:
    """Tokens with an image each between words, and the images."""
    random = torch.Generator().manual_seed(0)
    images = tower.example(random)
    with torch.no_grad():
        features = tower.tokens(images)
    settings, image = model.config.get_text_config(), model.config.image_token_id
    words = torch.randint(1, settings.vocab_size - 1, (ROWS, 2 + _AFTER), generator=random)
    words = torch.where(words == image, image - 1 if image else 1, words)
    return torch.cat((words[:, :2], torch.full((ROWS, features), image), words[:, 2:]), 1), images


def _in(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}


def _own(model: Any, ids_BT: Tensor, given: Mapping[str, Tensor]) -> Tensor:
    """The logits of transformers' own forward, in float64 where there is memory for a copy."""
    own, dtype = model, torch.float32
    if small(model):
        own, dtype = in_precision(copy.deepcopy(model), torch.float64), torch.float64
    with torch.no_grad():
        logits: Tensor = own(
            input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), **_in(given, dtype), return_dict=True
        ).logits
    return logits


def _features(model: Any, images: Images) -> list[Tensor]:
    """What transformers' own code makes of ``images``, where there are any."""
    if not images:
        return []
    with torch.no_grad():
        return [torch.cat(list(model.get_image_features(**images, return_dict=True).pooler_output))]


def _merged(
    definition: ThroughVision, ids_BT: Tensor, image_BT: Tensor, images: Images, given: Mapping[str, Tensor]
) -> Tensor:
    """The logits of the parts, merged as a client does, read in two calls; ``given``: what tokens have beside."""
    with torch.no_grad():
        (features,) = definition.vision(**images)
        embeds_BTC = definition.embed(ids_BT).masked_scatter(image_BT[..., None], features)
        cut, mask_BT = ids_BT.shape[1] - 1, torch.ones_like(ids_BT)
        first = definition.decoder(
            embeds_BTC[:, :cut], mask_BT[:, :cut], **{name: x[..., :cut] for name, x in given.items()}
        )
        last = definition.decoder(
            embeds_BTC[:, cut:], mask_BT, first[1:], **{name: x[..., cut:] for name, x in given.items()}
        )
    return torch.cat((first[0], last[0]), 1)
