"""The ``nn.Module`` that is exported: a model of transformers with named inputs and the outputs of its task.

Shape letters: B batch, T tokens.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from torch import Tensor, nn

from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.modules.call import named_outputs
from posexport.modules.live_module import source_of_module
from posexport.sizes import samples
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.spec import BATCH, SAMPLES, SEQUENCE, Axis, InputSpec, Limits
from posexport.tasks.registry import TASKS
from posexport.tasks.task import ANY, Task
from posexport.through.states import masks_as_given

IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
PIXELS, SOUND = "pixel_values", "input_values"
#: optional inputs that posexport does not pass: bounding boxes of words on a page
_UNSUPPORTED = {"bbox"}
#: number of ids of a character-level model, which has no vocabulary: all of Unicode
_CHARACTERS = 0x110000
#: tokens of an example of audio
_FRAMES = 16
#: tokens of audio for the proof: enough for tiled attention
_LONG = 600
_TEXT: list[Axis] = [BATCH, SEQUENCE]


class TransformersModule(nn.Module):
    """Calls ``model`` with named tensors and returns the outputs of its task as a dict.

    Args:
        model: a model of transformers.
        outputs: names of the outputs to return; the model may leave some out. Empty: all of them.
        inputs: the inputs, which `posexport.modules.live_module` reads from here.
        with_positions: pass ``position_ids``, by default counted from the attention mask.
    """

    def __init__(self, model: Any, outputs: Iterable[str], inputs: list[InputSpec], *, with_positions: bool) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs
        self._outputs, self._with_positions = tuple(outputs), with_positions

    @property
    def example_and_axes(self) -> tuple[dict[str, Tensor], dict[str, list[Axis]]] | tuple[()]:
        """Example inputs and their axes; empty if batch and tokens are the only dynamic axes."""
        if all(axis in (BATCH, SEQUENCE) for spec in self.inputs for axis in spec.axes if isinstance(axis, str)):
            return ()
        return example(self.inputs, self.sizes({})), {spec.name: spec.axes for spec in self.inputs}

    def sizes(self, chosen: Mapping[str, int], tokens: int = _FRAMES) -> dict[str, int]:
        """A size of every dynamic axis: those of ``chosen``, and enough audio samples for ``tokens`` tokens."""
        convolutions = _convolutions(self.model.config)
        audio = {SAMPLES: samples(tokens, convolutions)} if convolutions else {}
        return axis_sizes(self.inputs, {**audio, **chosen})

    def limits(self, limits: Limits) -> Limits:
        """``limits`` with further sizes for the proof, which the configuration names."""
        return limits

    def with_inputs(self, inputs: list[InputSpec]) -> "TransformersModule":
        """The same model with other inputs."""
        return TransformersModule(self.model, self._outputs, inputs, with_positions=self._with_positions).eval()

    def add_positions(self, tensors: dict[str, Tensor]) -> None:
        """Add ``position_ids`` to ``tensors``, counted from the attention mask, if the model needs and lacks them."""
        if self._with_positions and POSITIONS not in tensors:
            tensors[POSITIONS] = (tensors[MASK].cumsum(1) - 1).clamp(min=0)

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        self.add_positions(tensors)
        with masks_as_given(self.model):
            outputs = self.model(**tensors, return_dict=True)
        if self._outputs:
            named = {name: outputs[name] for name in self._outputs if outputs.get(name) is not None}
            if not named:
                raise PosexportError(
                    f"{type(self.model).__name__} returns {', '.join(outputs)}, and none of "
                    f"{', '.join(self._outputs)}; choose another task with --task"
                )
            return named
        # a loss is one number for the whole batch, and some models return an input again
        return {name: x for name, x in named_outputs(outputs).items() if x.dim() and name not in tensors}


def forward_parameters(model: Any) -> set[str]:
    """The names of the parameters of the model's ``forward``."""
    return set(inspect.signature(model.forward).parameters)


def checkpoint_source(
    checkpoint: Checkpoint, module: TransformersModule, task: str, remarks: Sequence[str] = ()
) -> Source:
    """The model of a checkpoint as a source for ``task``, with the facts that trial calls showed."""
    label = checkpoint.config.text("model_type")
    source = source_of_module(
        str(checkpoint.files.path), module, *module.example_and_axes, label=label, fingerprint=b""
    )
    _check_axes(str(checkpoint.config.label), task, source)
    return msgspec.structs.replace(
        source, task=task, limits=_limits_of(source, module), remarks=[*remarks, *source.remarks]
    )


def _check_axes(label: str, task: str, source: Source) -> None:
    """PosexportError for an output that has not as many axes as its task says."""
    wanted = TASKS[task].outputs if task in TASKS else {}
    for spec in source.outputs:
        axes = wanted.get(spec.name, ANY)
        if axes != ANY and len(axes) != len(spec.axes):
            raise PosexportError(
                f"{label}: the model returns {spec.name} as [{', '.join(map(str, spec.axes))}], and {task} is about "
                f"[{', '.join(axes)}]; choose the task that it was trained for with --task"
            )


def _limits_of(source: Source, module: TransformersModule) -> Limits:
    """The limits of ``source`` with the trained length; for audio with a proof size that reaches tiled attention.

    The trained length is ``max_position_embeddings``, at most the longest input that the model accepts: some position
    tables have rows for padding.
    """
    limits, settings = source.limits, module.model.config
    stated = getattr(settings.get_text_config(), "max_position_embeddings", None)
    if any(spec.role == "tokens" for spec in source.inputs) and isinstance(stated, int):
        return msgspec.structs.replace(limits, trained_length=min(stated, limits.max_length or stated))
    sizes = module.sizes({}, tokens=_LONG)
    if SAMPLES not in sizes:
        return module.limits(limits)
    return msgspec.structs.replace(limits, proof_sizes=[*limits.proof_sizes, {SAMPLES: sizes[SAMPLES]}])


def module_for_task(label: str, model: Any, task: Task, *, with_positions: bool) -> TransformersModule:
    """``model`` with the inputs and outputs of ``task``; ``label`` names the checkpoint in messages.

    Raises:
        PosexportError: the model needs inputs other than text, images and raw audio.
    """
    names = forward_parameters(model)
    inputs = []
    if unsupported := names & _UNSUPPORTED:
        raise PosexportError(
            f"{label}: {type(model).__name__} also takes {', '.join(sorted(unsupported))}, which posexport does not "
            "give it; it is not converted through transformers"
        )
    if IDS in names:
        # decoders get no token_type_ids: their tokens are of one type, the default
        inputs += text_inputs(model, names - {TYPES} if with_positions else names)
    if PIXELS in names:
        inputs.append(_pixels(label, model.config))
    if SOUND in names:
        inputs.append(_sound(label, model.config))
    if not inputs:
        raise PosexportError(
            f"{label}: {type(model).__name__} takes {model.main_input_name}; posexport converts models of text, images "
            "and raw sound through transformers"
        )
    return TransformersModule(model, task.outputs, inputs, with_positions=with_positions)


def text_inputs(model: Any, names: set[str]) -> list[InputSpec]:
    """The text inputs among ``names``: ids, attention mask and token types."""
    config = model.config.get_text_config()
    vocab = getattr(config, "vocab_size", _CHARACTERS)
    pad = getattr(config, "pad_token_id", None)
    padding = pad if isinstance(pad, int) and 0 <= pad < vocab else 0
    specs = [InputSpec(name=IDS, dtype="int64", axes=_TEXT, role="tokens", size=vocab, padding=padding)]
    if MASK in names:
        specs.append(InputSpec(name=MASK, dtype="int64", axes=_TEXT, role="mask"))
    types = getattr(config, "type_vocab_size", 0) or 0
    if TYPES in names and types > 1:
        specs.append(InputSpec(name=TYPES, dtype="int64", axes=_TEXT, role="types", size=types))
    return specs


def _pixels(label: str, config: Any) -> InputSpec:
    """Pixel values, with the image size that the model was trained for."""
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(vision, "num_channels", 3)
    if not isinstance(height, int) or not isinstance(width, int):
        raise PosexportError(f"{label} says image_size = {side!r:.60}; it must say the sides of an image in pixels")
    # a zero-shot model compares any number of images with any number of texts
    batch = f"image_{BATCH}" if vision is not config else BATCH
    return InputSpec(name=PIXELS, dtype="float32", axes=[batch, channels, height, width], role="values")


def _sound(label: str, config: Any) -> InputSpec:
    """Raw samples, or a spectrogram of fixed length: that of the model's position table."""
    if _convolutions(config):
        return InputSpec(name=SOUND, dtype="float32", axes=[BATCH, SAMPLES], role="values")
    length, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    if not isinstance(length, int) or not isinstance(bins, int):
        raise PosexportError(f"{label} has neither conv_kernel and conv_stride nor max_length and num_mel_bins")
    return InputSpec(name=SOUND, dtype="float32", axes=[BATCH, length, bins], role="values")


def _convolutions(config: Any) -> list[tuple[int, int]]:
    """Kernel size and stride of each convolution between samples and tokens; empty for models of other inputs."""
    sizes = [getattr(config, name, None) for name in ("conv_kernel", "conv_stride")]
    return list(zip(*sizes, strict=True)) if all(isinstance(size, list | tuple) for size in sizes) else []
