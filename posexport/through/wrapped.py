"""A model of transformers, called by the names of its inputs; its answer is what its task is for.

Shape letters: B batch, T tokens.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from torch import Tensor, nn

from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.modules.live_module import source_of_module
from posexport.sizes import samples
from posexport.sources.example import axis_sizes, example
from posexport.sources.source import Source
from posexport.spec import BATCH, SAMPLES, SEQUENCE, Axis, InputSpec, Limits
from posexport.through.tasks import Task

IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
PIXELS, SOUND = "pixel_values", "input_values"
#: inputs that a model does not need and that change what it is for: where a word stands on a page
_MORE = {"bbox"}
#: ids of a model of characters, which has no vocabulary
_CHARACTERS = 0x110000
#: tokens of an example of sound
_FRAMES = 16
#: tokens of sound, so many that attention is tiled
_LONG = 600
_TEXT: list[Axis] = [BATCH, SEQUENCE]


class Wrapped(nn.Module):
    """``model``; ``inputs`` say what it takes (`posexport.modules.live_module`).

    ``numbered``: it is given positions, counted by the mask where the caller has none.
    """

    def __init__(self, model: Any, outputs: tuple[str, ...], inputs: list[InputSpec], *, numbered: bool) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs
        self._outputs, self._numbered = outputs, numbered

    @property
    def told(self) -> tuple[dict[str, Tensor], dict[str, list[Axis]]] | tuple[()]:
        """An example and its axes, where axes beside batch and tokens are to be found by trial; nothing else."""
        if all(axis in (BATCH, SEQUENCE) for spec in self.inputs for axis in spec.axes if isinstance(axis, str)):
            return ()
        return example(self.inputs, self.sizes({})), {spec.name: spec.axes for spec in self.inputs}

    def sizes(self, chosen: Mapping[str, int], tokens: int = _FRAMES) -> dict[str, int]:
        """A size of every axis that varies, of sound enough for ``tokens``; ``chosen``: some of them."""
        convolutions = _convolutions(self.model.config)
        of_sound = {SAMPLES: samples(tokens, convolutions)} if convolutions else {}
        return axis_sizes(self.inputs, {**of_sound, **chosen})

    def given(self, inputs: list[InputSpec]) -> "Wrapped":
        """The same model by other inputs."""
        return Wrapped(self.model, self._outputs, inputs, numbered=self._numbered).eval()

    def number(self, tensors: dict[str, Tensor]) -> None:
        """Add positions, where it is given some and the caller has none."""
        if self._numbered and POSITIONS not in tensors:
            tensors[POSITIONS] = (tensors[MASK].cumsum(1) - 1).clamp(min=0)

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        self.number(tensors)
        answer = self.model(**tensors, return_dict=True)
        return {name: answer[name] for name in self._outputs if answer.get(name) is not None}


def taken(model: Any) -> set[str]:
    """The names of the parameters of its forward."""
    return set(inspect.signature(model.forward).parameters)


def by_trial(checkpoint: Checkpoint, module: Wrapped, task: str, remarks: Sequence[str] = ()) -> Source:
    """The model of a checkpoint as a source for ``task``, with what was found by running it."""
    label = checkpoint.config.text("model_type")
    found = source_of_module(str(checkpoint.files.path), module, *module.told, label=label, fingerprint=b"")
    return msgspec.structs.replace(
        found, task=task, limits=_limits_of(found, module), remarks=[*remarks, *found.remarks]
    )


def _limits_of(source: Source, module: Wrapped) -> Limits:
    """Those found, with the longest text that the model was trained for, and proven with sound long enough for tiles.

    Rows of a table of positions that no token gets do not count.
    """
    limits, settings = source.limits, module.model.config
    stated = getattr(settings.get_text_config(), "max_position_embeddings", None)
    if any(spec.role == "tokens" for spec in source.inputs) and isinstance(stated, int):
        return msgspec.structs.replace(limits, trained_length=min(stated, limits.max_length or stated))
    long = [sizes for sizes in (module.sizes({}, tokens=_LONG),) if SAMPLES in sizes]
    return msgspec.structs.replace(limits, proof_sizes=[*limits.proof_sizes, *({SAMPLES: s[SAMPLES]} for s in long)])


def wrapped(label: str, model: Any, task: Task, *, numbered: bool) -> Wrapped:
    """``model`` for ``task``; ``label`` names the checkpoint in messages.

    Raises:
        PosexportError: it takes what posexport cannot give it.
    """
    names = taken(model)
    inputs = []
    if more := names & _MORE:
        raise PosexportError(
            f"{label}: {type(model).__name__} also takes {', '.join(sorted(more))}, which posexport does not give it; "
            "it is not converted through transformers"
        )
    if IDS in names:
        # a decoder's tokens are of one type, which is its default
        inputs += text_inputs(model, names - {TYPES} if numbered else names)
    if PIXELS in names:
        inputs.append(_pixels(label, model.config))
    if SOUND in names:
        inputs.append(_sound(label, model.config))
    if not inputs:
        raise PosexportError(
            f"{label}: {type(model).__name__} takes {model.main_input_name}; posexport converts models of text, images "
            "and raw sound through transformers"
        )
    return Wrapped(model, task.outputs, inputs, numbered=numbered)


def text_inputs(model: Any, names: set[str]) -> list[InputSpec]:
    """Those of ``names`` that are of text."""
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
    """Images of the size that the model was trained for."""
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(vision, "num_channels", 3)
    if not isinstance(height, int) or not isinstance(width, int):
        raise PosexportError(f"{label} says image_size = {side!r:.60}; it must say the sides of an image in pixels")
    # the texts of a zero-shot model are as many as they are
    batch = f"image_{BATCH}" if vision is not config else BATCH
    return InputSpec(name=PIXELS, dtype="float32", axes=[batch, channels, height, width], role="values")


def _sound(label: str, config: Any) -> InputSpec:
    """Raw samples, as many in every row; or a spectrogram of the one length that its table of positions has."""
    if _convolutions(config):
        return InputSpec(name=SOUND, dtype="float32", axes=[BATCH, SAMPLES], role="values")
    length, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    if not isinstance(length, int) or not isinstance(bins, int):
        raise PosexportError(f"{label} has neither conv_kernel and conv_stride nor max_length and num_mel_bins")
    return InputSpec(name=SOUND, dtype="float32", axes=[BATCH, length, bins], role="values")


def _convolutions(config: Any) -> list[tuple[int, int]]:
    """Kernel and stride of those between samples and tokens; none where there are none."""
    steps = [getattr(config, name, None) for name in ("conv_kernel", "conv_stride")]
    return list(zip(*steps, strict=True)) if all(isinstance(each, list | tuple) for each in steps) else []
