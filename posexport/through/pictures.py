"""transformers' models with images as input, of every size that they accept: detection, segmentation, depth, keypoints.

The example has one size; `posexport.modules.axes` finds the other sizes that the model accepts by trial calls.

Shape letters: B batch, H height, W width.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec
import torch
from torch import Tensor

from posexport.base.sizes import multiple
from posexport.base.spec import BATCH, HEIGHT, WIDTH, Axis, InputSpec, Limits
from posexport.base.system.user_code import is_external, raised
from posexport.base.tasks.task import Task
from posexport.errors import PosexportError
from posexport.sources.example import example
from posexport.through.inputs import FURTHER, IDS, PIXELS, RATIOS, forward_parameters, text_inputs
from posexport.through.module import SymbolicSizes

PIXEL_MASK = "pixel_mask"
#: rows and columns of patches of an example image, and the least number of pixels along the edge of a patch
_PATCHES, _PIXELS = (4, 6), 16
#: factors by which the small image is enlarged if the model rejects it
_LARGER = (2, 4, 8)
#: (height, width) of further images: with an odd number of patches along both edges, and with even numbers
_ODD, _EVEN = (128, 196), (160, 224)
#: strides in pixels of Swin's finest and of its coarsest features
_PATCH, _STRIDE = 4, 32
#: keys of the configuration of the vision model, in the order of the search
_VISION = ("vision_config", "backbone_config")


class PicturesModule(SymbolicSizes):
    """A model with images as input; ``trained`` is the (height, width) that it was trained for, None if unknown."""

    trained: tuple[int, int] | None = None

    @property
    def example_and_axes(self) -> tuple[dict[str, Tensor], dict[str, list[Axis]]]:
        """Example images; their dynamic axes are not declared but found by trial calls."""
        return example(self.inputs, self.sizes({})), {}

    def limits(self, limits: Limits) -> Limits:
        """``limits`` with larger images in the trace and the proof, and with the trained size in the proof.

        The coarsest features of a small image have a size of one, which a trace would treat as a constant.
        """
        if not limits.proof_sizes or set(limits.proof_sizes[0]) != {HEIGHT, WIDTH}:
            return limits
        config = self.model.config
        if window := _window(config):
            least = _PATCH * (_STRIDE // _PATCH * window + 1)
            limits = msgspec.structs.replace(
                limits,
                min_sizes={HEIGHT: least, WIDTH: least},
                size_steps={HEIGHT: _PATCH, WIDTH: _PATCH},
                proof_sizes=[{HEIGHT: least, WIDTH: least + 2 * _PATCH}],
            )
        chosen = [*_larger(config), *([] if self.trained is None else [self.trained])]
        sizes = [_multiples(limits, {HEIGHT: height, WIDTH: width}) for height, width in chosen]
        new = [size for size in sizes if size is not None and size not in limits.proof_sizes]
        return msgspec.structs.replace(
            limits,
            proof_sizes=[*limits.proof_sizes, *new],
            trace_sizes={**limits.trace_sizes, **(sizes[0] or {})},
        )


def _window(config: Any) -> int:
    """Number of tokens along the edge of an attention window, for example Swin's; 0 without windows."""
    window = getattr(getattr(config, "backbone_config", None), "window_size", 0)
    return window if isinstance(window, int) else 0


def _larger(config: Any) -> tuple[tuple[int, int], ...]:
    """(Height, width) of further images; the first is traced, and its path through the code must suit all sizes.

    DPT resizes features that are not exactly twice as large as the coarser ones. transformers' Swin pads features that
    are not a multiple of the window, and uses smaller windows for features smaller than one. The first image is chosen
    so that DPT resizes all features, and so that Swin pads all features, each larger than a window.
    """
    window = _window(config)
    if not window:
        patch = _patch(config)
        height, width = (patch * (ceil(pixels / patch) | 1) for pixels in _ODD)
        return (height, width), _EVEN
    patches = _STRIDE // _PATCH * window
    return (_PATCH * (patches + 1), _PATCH * (2 * patches + 1)), (2 * _STRIDE * window, 3 * _STRIDE * window)


def _multiples(limits: Limits, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """``sizes`` rounded up to multiples of their steps; None if a result is beyond a limit."""
    stepped = {axis: multiple(size, limits.size_steps.get(axis, 1)) for axis, size in sizes.items()}
    allowed = all(
        limits.min_sizes.get(axis, 1) <= size <= limits.max_sizes.get(axis, size) for axis, size in stepped.items()
    )
    return stepped if allowed else None


def reads_images(model: Any) -> bool:
    """Whether images of any size, with their masks, are all inputs that the model's ``forward`` needs.

    A model with an image backbone may have texts as input too.
    """
    names = forward_parameters(model)
    further = names & {IDS, "input_points", *FURTHER}
    # excluded: videos; images that are cut in a loop; square images, which are reconstructed
    if hasattr(model.config, "num_frames") or hasattr(model.config, RATIOS) or _draws_squares(model):
        return False
    with_backbone = hasattr(model.config, "backbone_config") and further <= {IDS, *FURTHER}
    return PIXELS in names and (not further or with_backbone)


def _draws_squares(model: Any) -> bool:
    """Whether the model assumes square images: the edge is the square root of the number of patches (SimMIM)."""
    return type(model).__name__.endswith("ForMaskedImageModeling")


def trained_size(config: Any) -> tuple[int, int] | None:
    """The (height, width) in pixels from ``config`` or from the configuration of its backbone; None if absent."""
    for settings in (config, *(getattr(config, name, None) for name in _VISION)):
        # of a wrapped library's folders: channels, height and width
        stated = (getattr(settings, "pretrained_cfg", None) or {}).get("input_size")
        side = stated[1:] if stated else getattr(settings, "image_size", None)
        if isinstance(side, int):
            return side, side
        if isinstance(side, list | tuple) and len(side) == 2 and all(isinstance(size, int) for size in side):
            return int(side[0]), int(side[1])
    return None


def reads_any_size(model: Any) -> bool:
    """Whether a model of patches accepts images of any size without further arguments.

    It does if it has no trained size, or if it interpolates positions. DINOv2 and DINOv3 always interpolate; ViT only
    with ``interpolate_pos_encoding``.
    """
    trained, patch = trained_size(model.config), getattr(model.config, "patch_size", None)
    if trained is None:
        return True
    if not isinstance(patch, int) or "interpolate_pos_encoding" in forward_parameters(model):
        return False
    height, width = trained[0] + patch, trained[1] + 2 * patch
    try:
        with torch.no_grad():
            model(torch.zeros(1, getattr(model.config, "num_channels", 3), height, width))
    except Exception as err:
        if is_external(err):
            raise
        return False
    return True


def picture_module(label: str, model: Any, task: Task) -> PicturesModule:
    """``model`` with images as input, and with their mask if it changes an output; ``label`` names the checkpoint.

    Raises:
        PosexportError: the model accepts neither a small image nor one of the size that it was trained for.
    """
    trained = trained_size(model.config)
    # a small image is enough to find the accepted sizes; but some models accept only the trained size, and a detector
    # needs at least as many positions as queries
    height, width = _small(model.config)
    sizes = [(height, width), *([] if trained is None else [trained]), *((n * height, n * width) for n in _LARGER)]
    failures = []
    for size in sizes:
        try:
            module = _with_size(model, task, size, mask=False)
            _called(module)
            if PIXEL_MASK in forward_parameters(model):
                with_mask = _with_size(model, task, size, mask=True)
                module = with_mask if _reads_mask(with_mask) else module
        except Exception as err:
            if is_external(err) or isinstance(err, PosexportError):
                raise
            failures.append((size, err))
            continue
        module.trained = trained
        return module
    (height, width), error = failures[0 if trained is None else 1]
    raise PosexportError(
        f"{label}: {type(model).__name__} cannot be called with an image of {height}x{width} alone: it raised "
        f"{raised(error)}; it is not converted through transformers"
    ) from error


def _small(config: Any) -> tuple[int, int]:
    """Height and width in pixels of an image of a few patches."""
    patch = _patch(config)
    edge = patch * ceil(_PIXELS / patch)
    return _PATCHES[0] * edge, _PATCHES[1] * edge


def _patch(config: Any) -> int:
    """Pixels along the longer edge of a patch; 1 if no configuration has a ``patch_size``."""
    configs = [config, *(getattr(config, name, None) for name in _VISION)]
    stated = next((patch for settings in configs if (patch := getattr(settings, "patch_size", None))), 1)
    return max(stated) if isinstance(stated, list | tuple) else int(stated)


def _with_size(model: Any, task: Task, size: tuple[int, int], *, mask: bool) -> PicturesModule:
    """The module with images of one size as its inputs."""
    configs = (getattr(model.config, name, None) for name in _VISION)
    vision = next((config for config in configs if config is not None), model.config)
    stated = (getattr(model.config, "pretrained_cfg", None) or {}).get("input_size")
    channels = stated[0] if stated else getattr(vision, "num_channels", getattr(model.config, "num_channels", 3))
    inputs = [InputSpec(name=PIXELS, dtype="float32", axes=[BATCH, channels, *size], role="values")]
    if mask:
        inputs.append(InputSpec(name=PIXEL_MASK, dtype="int64", axes=[BATCH, *size], role="mask"))
    names = forward_parameters(model)
    inputs += text_inputs(model, names) if IDS in names else []
    inputs += [spec(model.config) for name, spec in FURTHER.items() if name in names]
    return PicturesModule(model, task.outputs, inputs, with_positions=False).eval()


def _called(module: PicturesModule, cut: bool = False) -> dict[str, Tensor]:
    """The outputs for the example; with ``cut``, the lower and the right half of every image is padding."""
    tensors, _ = module.example_and_axes
    if cut:
        mask_BHW = tensors[PIXEL_MASK]
        mask_BHW[:, mask_BHW.shape[1] // 2 :] = 0
        mask_BHW[:, :, mask_BHW.shape[2] // 2 :] = 0
    with torch.no_grad():
        outputs: dict[str, Tensor] = module(**tensors)
    return outputs


def _reads_mask(module: PicturesModule) -> bool:
    """Whether padding changes an output: some models accept a mask and ignore it."""
    whole, cut = _called(module), _called(module, cut=True)
    return any(not torch.equal(whole[name].nan_to_num(), cut[name].nan_to_num()) for name in whole)
