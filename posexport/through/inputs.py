"""The inputs of a model of transformers, by the names of its ``forward``'s parameters.

A further input is a function here and a line of `FURTHER`. Shape letters: B batch, T tokens.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from posexport.base.spec import BATCH, SAMPLES, SEQUENCE, Axis, InputSpec
from posexport.errors import PosexportError

IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
PIXELS, SOUND, FEATURES = "pixel_values", "input_values", "input_features"
#: DepthPro's, which cuts an image into patches by a loop over its size: the smallest of them makes one patch
RATIOS = "scaled_images_ratios"
#: number of ids of a character-level model, which has no vocabulary: all of Unicode
_CHARACTERS = 0x110000
_TEXT: list[Axis] = [BATCH, SEQUENCE]


def forward_parameters(model: Any) -> set[str]:
    """The names of the parameters of the model's ``forward``."""
    return set(inspect.signature(model.forward).parameters)


def inputs_of(label: str, model: Any, *, with_positions: bool = False, pairs: bool = False) -> list[InputSpec]:
    """The inputs of ``model``; ``label`` names the checkpoint in messages.

    Args:
        with_positions: it is a decoder; its tokens are of one type.
        pairs: an image or a sound belongs to each text; else any number of both are compared.

    Raises:
        PosexportError: the model reads other data, or its configuration lacks their sizes.
    """
    names, config = forward_parameters(model), model.config
    inputs = text_inputs(model, names - {TYPES} if with_positions else names) if IDS in names else []
    if PIXELS in names:
        inputs.append(_pixels(label, config, pairs=pairs))
    if SOUND in names:
        inputs.append(_sound(label, config))
    if getattr(config, "model_type", None) != "vit_mae":  # Hiera takes it and does not read it
        names = names - {"noise"}
    inputs += [spec(config) for name, spec in FURTHER.items() if name in names]
    if not inputs:
        raise PosexportError(
            f"{label}: {type(model).__name__} takes {model.main_input_name}; posexport converts models of text, "
            "images, raw sound and series through transformers"
        )
    # a mask of tokens, rows of a trajectory
    rows = next(
        (spec.axes[:2] for spec in inputs if spec.axes[:2] in (_TEXT, [BATCH, SAMPLES]) and spec.name != SOUND), None
    )
    if IDS not in names and MASK in names and rows is not None:
        inputs.append(InputSpec(name=MASK, dtype="int64", axes=rows, role="mask"))
    return inputs


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


def convolutions_of(config: Any) -> list[tuple[int, int]]:
    """Kernel size and stride of each convolution between samples and tokens; empty for models of other inputs.

    A layer that halves frames and rounds up makes as many as one without neighbours.
    """
    encoder = getattr(config, "encoder_config", None)
    if factor := getattr(encoder, "subsampling_factor", 0):
        return [(1, 2)] * int(math.log2(factor))
    config = getattr(config, "encoder", config)  # of an encoder-decoder
    if getattr(config, "model_type", None) == "moonshine":
        return [(127, 64), (7, 3), (3, 2)]  # no key of its configuration says so
    sizes = [getattr(config, name, None) for name in ("conv_kernel", "conv_stride")]
    if not all(isinstance(size, list | tuple) for size in sizes):
        return []
    convolutions: list[tuple[int, int]] = list(zip(*sizes, strict=True))
    if getattr(config, "add_adapter", False):
        # convolutions with a padding of 1
        convolutions += [(config.adapter_kernel_size - 2, config.adapter_stride)] * config.num_adapter_layers
    return convolutions


def _pixels(label: str, config: Any, *, pairs: bool) -> InputSpec:
    """Pixel values, with the image size that the model was trained for."""
    vision = getattr(config, "vision_config", config)
    vision = getattr(vision, "backbone_config", None) or vision
    # a zero-shot model compares any number of images with any number of texts
    batch = BATCH if pairs or vision is config else f"image_{BATCH}"
    if isinstance(patches := getattr(vision, "num_patches", None), int):
        axes: list[Axis] = [batch, patches, vision.num_channels * vision.patch_size**2]
        return InputSpec(name=PIXELS, dtype="float32", axes=axes, role="values")
    side = getattr(vision, "image_size", getattr(vision, "input_size", None))
    if side is None and hasattr(config, RATIOS):
        side = round(config.patch_size / min(getattr(config, RATIOS)))
    height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(vision, "num_channels", 3)
    if not isinstance(height, int) or not isinstance(width, int):
        raise PosexportError(f"{label} says image_size = {side!r:.60}; it must say the sides of an image in pixels")
    frames = getattr(vision, "num_frames", None)
    video: list[Axis] = [frames] if isinstance(frames, int) else []
    return InputSpec(name=PIXELS, dtype="float32", axes=[batch, *video, channels, height, width], role="values")


def _sound(label: str, config: Any) -> InputSpec:
    """Raw samples, or a spectrogram of the length of the model's position table."""
    if convolutions_of(config):
        return InputSpec(name=SOUND, dtype="float32", axes=[BATCH, SAMPLES], role="values")
    length, bins = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
    if not isinstance(length, int) or not isinstance(bins, int):
        raise PosexportError(f"{label} has neither conv_kernel and conv_stride nor max_length and num_mel_bins")
    return InputSpec(name=SOUND, dtype="float32", axes=[BATCH, length, bins], role="values")


def _boxes(config: Any) -> InputSpec:
    """The place of each token on its page: left, top, right and bottom, as ids, or of BROS as shares of the page."""
    most = getattr(config, "max_2d_position_embeddings", None)
    if isinstance(most, int) and not hasattr(config, "bbox_scale"):
        return InputSpec(name="bbox", dtype="int64", axes=[*_TEXT, 4], role="boxes", size=most)
    return InputSpec(name="bbox", dtype="float32", axes=[*_TEXT, 4], role="boxes", size=1)


def _spectrogram(config: Any) -> InputSpec:
    """Frames of a sound with all mel bins: any number, or as many as CLAP's encoder makes a square image of."""
    audio = getattr(config, "audio_config", None) or getattr(config, "encoder_config", config)
    if not hasattr(audio, "spec_size"):
        bins = getattr(audio, "num_mel_bins", None) or getattr(audio, "feature_projection_input_dim", None)
        if not isinstance(bins, int):
            raise PosexportError(f"{type(config).__name__} names no num_mel_bins, so the size of a frame is not known")
        return InputSpec(name=FEATURES, dtype="float32", axes=[BATCH, SAMPLES, bins], role="values")
    frames = audio.spec_size * (audio.spec_size // audio.num_mel_bins)
    axes: list[Axis] = [f"audio_{BATCH}", 1, frames, audio.num_mel_bins]
    return InputSpec(name=FEATURES, dtype="float32", axes=axes, role="values")


def _series(config: Any) -> InputSpec:
    """As many steps of all channels as the model was trained for."""
    if not isinstance(getattr(config, "num_input_channels", None), int):
        raise PosexportError(
            f"{type(config).__name__} names no num_input_channels, so the size of a series is not known; export the "
            "part of the model that reads tensors, as a module of yours"
        )
    axes: list[Axis] = [BATCH, config.context_length, config.num_input_channels]
    return InputSpec(name="past_values", dtype="float32", axes=axes, role="values")


def _clip(config: Any) -> InputSpec:
    """The frames of a video, as many and as large as V-JEPA 2 was trained for."""
    axes: list[Axis] = [BATCH, config.frames_per_clip, config.in_chans, config.crop_size, config.crop_size]
    return InputSpec(name="pixel_values_videos", dtype="float32", axes=axes, role="values")


def _noise(config: Any) -> InputSpec:
    """A number for each patch: patches with the largest numbers are hidden; transformers draws them by a seed."""
    edges = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    patches = (edges[0] // config.patch_size) * (edges[1] // config.patch_size)
    return InputSpec(name="noise", dtype="float32", axes=[BATCH, patches], role="values")


def _of_patches(name: str) -> Callable[[Any], InputSpec]:
    """Which patches of an image are no padding, or how many rows and columns of them there are (SigLIP 2)."""

    def spec(config: Any) -> InputSpec:
        vision = getattr(config, "vision_config", config)
        batch = BATCH if vision is config else f"image_{BATCH}"
        if name == "spatial_shapes":
            return InputSpec(name=name, dtype="int64", axes=[batch, 2], role="shapes", size=vision.num_patches)
        return InputSpec(name=name, dtype="int64", axes=[batch, vision.num_patches], role="mask")

    return spec


def _task(config: Any) -> InputSpec:
    """The ids of a sentence that names the task, filled up to one length."""
    axes: list[Axis] = [BATCH, config.task_seq_len]
    return InputSpec(name="task_inputs", dtype="int64", axes=axes, role="tokens", size=config.text_encoder_vocab_size)


def _steps(name: str, width: str | int) -> Callable[[Any], InputSpec]:
    """Vectors of the steps of a trajectory, of a size that the configuration names."""

    def spec(config: Any) -> InputSpec:
        size = getattr(config, width) if isinstance(width, str) else width
        return InputSpec(name=name, dtype="float32", axes=[*_TEXT, size], role="values")

    return spec


def _times(config: Any) -> InputSpec:
    return InputSpec(name="timesteps", dtype="int64", axes=_TEXT, role="tokens", size=config.max_ep_len)


#: by name, in the order of the graph's inputs
FURTHER: Mapping[str, Callable[[Any], InputSpec]] = {
    "bbox": _boxes,
    FEATURES: _spectrogram,
    "past_values": _series,
    "pixel_values_videos": _clip,
    "noise": _noise,
    "pixel_attention_mask": _of_patches("pixel_attention_mask"),
    "spatial_shapes": _of_patches("spatial_shapes"),
    "task_inputs": _task,
    "states": _steps("states", "state_dim"),
    "actions": _steps("actions", "act_dim"),
    "returns_to_go": _steps("returns_to_go", 1),
    "timesteps": _times,
}
