"""Exports a vision-language model of transformers as the three graphs that transformers.js runs.

``vision_encoder.onnx``: images to features. ``embed_tokens.onnx``: ids to embeddings. ``decoder_model_merged.onnx``:
embeddings and posexport's KV cache to logits. The client replaces the embeddings of image tokens by the features; the
graphs alone, chained, read text.

Shape letters: B batch, N images of a row, T tokens, P features of an image, C model size.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import EMBEDS, InputSpec, LengthContract, OutputSpec, PartSpec, Promises, ProofPlan
from posexport.base.tasks.task import Task
from posexport.checkpoints.opened import Checkpoint
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.definition import Definition, Part
from posexport.models.embeddings_input import DECODER_FILE, EMBED_FILE
from posexport.modules.user_module import UserModule, by_name
from posexport.proof.full_model.records import NotComparableError
from posexport.sources.example import axis_sizes, example
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.source import Model, model_of
from posexport.through import attention
from posexport.through.agreement import use_posexport_attention
from posexport.through.anyres import AnyRes
from posexport.through.decoder import EmbedsDecoder, first_words
from posexport.through.decoder_source import decoder_source
from posexport.through.deepstack import Deepstack
from posexport.through.embeds import embeds_decoder
from posexport.through.gemma4 import PER_LAYER, Gemma4
from posexport.through.grids import Grids
from posexport.through.inputs import IDS, MASK, TYPES, text_inputs
from posexport.through.module import TransformersModule, checkpoint_source
from posexport.through.picture_rules import picture_rules
from posexport.through.raster import Raster
from posexport.through.sounds import Windows
from posexport.through.towers import EmbedPart, Features, Gemma3, Idefics, Llava, Queries, Tower
from posexport.through.vision_agreement import difference

#: the vision tower by model_type
TOWERS: Mapping[str, type[Tower]] = {
    "blip-2": Queries,
    "gemma3": Gemma3,
    "gemma4": Gemma4,
    "glm_ocr": Grids,
    "got_ocr2": Features,
    "idefics3": Idefics,
    "internvl": Features,
    "llava": Llava,
    "llava_next": AnyRes,
    "llava_onevision": AnyRes,
    "paddleocr_vl": Raster,
    "qwen2_5_vl": Grids,
    "qwen2_vl": Grids,
    "qwen3_5": Grids,
    "qwen3_5_moe": Grids,
    "qwen3_vl": Deepstack,
    "qwen3_vl_moe": Deepstack,
    "smolvlm": Idefics,
    "voxtral": Windows,
}


class DecoderPart(nn.Module):
    """Maps embeddings and the KV cache to logits and the updated KV cache."""

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
        per_layer_inputs: Tensor | None = None,
        past_conv: Any = None,
        past_recurrent: Any = None,
    ) -> Any:
        given = {
            TYPES: token_type_ids,
            PER_LAYER: per_layer_inputs,
            "past_conv": past_conv,
            "past_recurrent": past_recurrent,
        }
        more = {name: x for name, x in given.items() if x is not None}
        return self.decoder(inputs_embeds, attention_mask, past_key_values, position_ids, **more)


class ThroughVision(Definition):
    """The three graphs as one module: images to features, and tokens with a KV cache to embeddings and logits.

    ``vision`` wraps ``tower`` as a module with named inputs.
    """

    ordered = True
    causal = True

    def __init__(
        self, vision: UserModule, tower: Tower, embed: EmbedPart, decoder: EmbedsDecoder, tokens: InputSpec
    ) -> None:
        super().__init__()
        self.vision, self.embed, self.decoder = vision, embed, decoder
        self._tokens, self._graph_names = tokens, dict(tower.graph_names)
        self._sizes, self._file = tower.sizes, tower.file

    @property
    def encoding(self) -> Encoding:
        """Positions are in transformers' code."""
        return self.decoder.encoding

    @property
    def vocab(self) -> int:
        return self.decoder.vocab

    def reduced_to(self, vocab: int) -> None:
        """As `ThroughDecoder.reduced_to`; the embeddings and the vision tower are called once."""
        if len(self.embed.names) > 1:
            raise NotComparableError("its embeddings have a vector of each token for every layer")
        self.decoder.reduced_to(vocab)
        self._tokens = first_words(self._tokens, vocab)
        images = example([*self.vision.inputs], axis_sizes(self.vision.inputs, self._sizes.traced))
        with torch.no_grad():
            self.embed(torch.zeros((1, 1), dtype=torch.int64))
            self.vision(**images)

    @property
    def limits(self) -> LengthContract:
        """The decoder's length limits, and the multiples that sizes of images must have."""
        limits = self.decoder.limits
        return msgspec.structs.replace(limits, size_steps={**limits.size_steps, **self._sizes.steps})

    @property
    def plan(self) -> ProofPlan:
        """The decoder's proof plan, with the sizes of images."""
        sizes, trace_sizes = self._sizes, {**self.decoder.plan.trace_sizes, **self._sizes.traced}
        return msgspec.structs.replace(self.decoder.plan, proof_sizes=list(sizes.proven), trace_sizes=trace_sizes)

    @property
    def promises(self) -> Promises:
        return self.decoder.promises

    @property
    def inputs(self) -> list[InputSpec]:
        rest = (spec for spec in self.decoder.inputs if spec.name not in self.embed.names)
        return [*self.vision.inputs, self._tokens, *rest]

    @property
    def outputs(self) -> list[OutputSpec]:
        return [*self.decoder.outputs, *self._embeds, *self.vision.outputs]

    @property
    def _embeds(self) -> list[OutputSpec]:
        specs = {spec.name: spec for spec in self.decoder.inputs}
        return [OutputSpec(name=name, axes=specs[name].axes) for name in self.embed.names]

    @property
    def parts(self) -> list[Part]:
        """The graphs, with the file and tensor names of transformers.js."""
        vision = self.vision
        images = [msgspec.structs.replace(spec, name=self._graph_name(spec.name)) for spec in vision.inputs]
        modules = (
            by_name(vision.argument, _RenamedInputs(vision.module, self._graph_names), images, vision.outputs),
            self.embed,
            DecoderPart(self.decoder),
        )
        signatures: list[tuple[str, list[InputSpec], list[OutputSpec]]] = [
            (self._file, list(vision.inputs), list(vision.outputs)),
            (EMBED_FILE, [self._tokens], self._embeds),
            (DECODER_FILE, self.decoder.inputs, self.decoder.outputs),
        ]
        return [
            Part(
                PartSpec(
                    file=file,
                    inputs=[msgspec.structs.replace(spec, name=self._graph_name(spec.name)) for spec in inputs],
                    outputs=outputs,
                    input_names={self._graph_name(spec.name): spec.name for spec in inputs},
                    output_names={spec.name: spec.name for spec in outputs},
                ),
                module.eval(),
            )
            for module, (file, inputs, outputs) in zip(modules, signatures, strict=True)
        ]

    def _graph_name(self, name: str) -> str:
        return self._graph_names.get(name, name)

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        made = dict(zip(self.embed.names, self.embed(inputs[IDS]), strict=True))
        images = {spec.name: inputs[spec.name] for spec in self.vision.inputs}
        named = {name: x for name, x in inputs.items() if name != IDS and name not in images}
        return (*self.decoder(**made, **named), *made.values(), *self.vision(**images))


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """The vision-language ``model`` of a checkpoint, as three graphs.

    Raises:
        PosexportError: its vision tower is not supported, its decoder cannot have a KV cache, or logits differ.
    """
    config = checkpoint.config
    kind = config.text("model_type")
    if kind not in TOWERS:
        raise PosexportError(
            f"{config.label} says model_type = {kind}, which reads images or sounds beside text; of such models "
            f"{', '.join(TOWERS)} are converted"
        )
    # reference: transformers' model without its cache, before anything in it is replaced
    model.config.use_cache = model.config.get_text_config().use_cache = False
    attention.use(model, attention="eager", experts="eager")
    original = copy_with_same_weights(model)
    tower = TOWERS[kind](config, model).eval()
    # the decoder: posexport's attention, then its KV cache, then embeddings as its input
    inputs = text_inputs(model, {IDS, MASK})
    text = TransformersModule(tower.of_texts(model), task.outputs, inputs, with_positions=True).eval()
    remarks = use_posexport_attention(config.label, text)
    tower.attention_replaced()
    in_place = (
        f"a client puts {tower.features} in the place of the {EMBEDS} of their tokens; the graphs are proven one after "
        "another, the decoder on embeddings of tokens"
    )
    without_cache = checkpoint_source(checkpoint, text, task.name, [*remarks, in_place])
    decoder = decoder_source(without_cache, model.config.get_text_config().num_hidden_layers, task.name)
    given = model.get_input_embeddings()
    embeds = embeds_decoder(decoder, text, given, EMBEDS, tower.decoder, tower.more, tower.streams)
    vision = _vision(str(checkpoint.files.path), tower)
    definition = ThroughVision(vision, tower, tower.embed(model), embeds, text.inputs[0]).eval()
    if what := difference(definition, original, TOWERS[kind], config):
        raise PosexportError(
            f"{config.label}: {kind} gives other {what} than its parts do; it is not converted through transformers"
        )
    rules, on_rules = picture_rules(checkpoint, model)
    result = model_of(definition, task.name, trial=decoder)
    return msgspec.structs.replace(result, picture_rules=rules, remarks=[*result.remarks, *on_rules])


def _vision(argument: str, tower: Tower) -> UserModule:
    return by_name(argument, _NamedOutput(tower).eval(), tower.inputs, tower.outputs)


class _RenamedInputs(nn.Module):
    """A module with renamed inputs; ``graph_names`` maps the names of its arguments to the new ones."""

    def __init__(self, module: nn.Module, graph_names: Mapping[str, str]) -> None:
        super().__init__()
        self.module = module
        self._names = {graph_name: name for name, graph_name in graph_names.items()}

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.module(**{self._names.get(name, name): x for name, x in inputs.items()})
        return outputs


class _NamedOutput(nn.Module):
    """A tower that returns its features by name."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, **images: Tensor) -> dict[str, Tensor]:
        return {self.tower.features: self.tower(**images)}
