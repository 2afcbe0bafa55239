"""Models of transformers that read images alone, of every size that they accept: boxes, masks, depth, keypoints.

An example of one size is enough: `posexport.modules.axes` finds out by calls which other sizes the model takes.

Shape letters: B batch, H height, W width.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec
import torch
from torch import Tensor

from posexport.errors import PosexportError
from posexport.sizes import multiple
from posexport.sources.example import example
from posexport.spec import BATCH, HEIGHT, WIDTH, Axis, InputSpec, Limits
from posexport.system.user_code import is_external, raised
from posexport.tasks.task import Task
from posexport.through.inputs import FURTHER, IDS, PIXELS, RATIOS, forward_parameters, text_inputs
from posexport.through.module import SymbolicSizes

PIXEL_MASK = "pixel_mask"
#: an example has so many rows and columns of patches, each of at least so many pixels
_PATCHES, _PIXELS = (4, 6), 16
#: factors of the small image where that is too small
_LARGER = (2, 4, 8)
#: height and width of further images, of patches of which no side has an even number; and of others
_ODD, _EVEN = (128, 196), (160, 224)
#: pixels from one of Swin's finest features to the next, and of its coarsest
_PATCH, _STRIDE = 4, 32
#: configurations of the part that reads images, in this order
_VISION = ("vision_config", "backbone_config")


class PicturesModule(SymbolicSizes):
    """A model of images; ``trained`` is the height and width that it was trained for, None if that is not known."""

    trained: tuple[int, int] | None = None

    @property
    def example_and_axes(self) -> tuple[dict[str, Tensor], dict[str, list[Axis]]]:
        """Example images, whose axes are not declared."""
        return example(self.inputs, self.sizes({})), {}

    def limits(self, limits: Limits) -> Limits:
        """``limits`` with larger images in the trace and the proof, and with the trained size in the proof.

        The coarsest features of a small image are one pixel, which a trace takes for a constant.
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
    """Tokens along the edge of a window that attention is in, as of Swin; 0 without windows."""
    window = getattr(getattr(config, "backbone_config", None), "window_size", 0)
    return window if isinstance(window, int) else 0


def _larger(config: Any) -> tuple[tuple[int, int], ...]:
    """Heights and widths of further images; the first is traced, and its way through the model's code must fit all.

    DPT resizes features where they are not twice as large as the coarser ones, which are rounded up: in the first image
    none are. transformers' Swin pads features to whole windows only where they are not, and has smaller windows where
    features are smaller: in the first image no features are whole windows, and all are larger than one.
    """
    window = _window(config)
    if not window:
        patch = _patch(config)
        height, width = (patch * (ceil(pixels / patch) | 1) for pixels in _ODD)
        return (height, width), _EVEN
    patches = _STRIDE // _PATCH * window
    return (_PATCH * (patches + 1), _PATCH * (2 * patches + 1)), (2 * _STRIDE * window, 3 * _STRIDE * window)


def _multiples(limits: Limits, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """``sizes`` up to the next multiples of their steps; None where a limit does not allow one."""
    stepped = {axis: multiple(size, limits.size_steps.get(axis, 1)) for axis, size in sizes.items()}
    allowed = all(
        limits.min_sizes.get(axis, 1) <= size <= limits.max_sizes.get(axis, size) for axis, size in stepped.items()
    )
    return stepped if allowed else None


def reads_images(model: Any) -> bool:
    """Whether images of any size, with masks of them, are all that the model's ``forward`` needs.

    With a backbone for images texts may come beside them.
    """
    names = forward_parameters(model)
    others = names & {IDS, "input_points", *FURTHER}
    # videos; images that are cut in a loop; square images, which are drawn again
    if hasattr(model.config, "num_frames") or hasattr(model.config, RATIOS) or _draws_squares(model):
        return False
    return PIXELS in names and (not others or (hasattr(model.config, "backbone_config") and others <= {IDS, *FURTHER}))


def _draws_squares(model: Any) -> bool:
    """Whether the model takes the square root of the number of patches for the edge of an image (SimMIM)."""
    return type(model).__name__.endswith("ForMaskedImageModeling")


def trained_size(config: Any) -> tuple[int, int] | None:
    """The height and width in pixels that ``config`` or the configuration of its backbone names; None: none is."""
    for settings in (config, *(getattr(config, name, None) for name in _VISION)):
        # timm's folders: channels, height and width
        stated = (getattr(settings, "pretrained_cfg", None) or {}).get("input_size")
        side = stated[1:] if stated else getattr(settings, "image_size", None)
        if isinstance(side, int):
            return side, side
        if isinstance(side, list | tuple) and len(side) == 2 and all(isinstance(size, int) for size in side):
            return int(side[0]), int(side[1])
    return None


def reads_any_size(model: Any) -> bool:
    """Whether a model of patches reads images as they are: of no trained size, or with positions that it interpolates.

    DINOv2 and DINOv3 interpolate always; ViT only with ``interpolate_pos_encoding``.
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
    """``model`` with images as input, and their mask where it changes an output; ``label`` names the checkpoint.

    Raises:
        PosexportError: the model takes neither a small image nor one of the size that it was trained for.
    """
    trained = trained_size(model.config)
    # a small image is enough to find the sizes; a model of one size takes only that, and a
    # detector needs at least as many positions as queries
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
    """Height and width of a few patches."""
    patch = _patch(config)
    edge = patch * ceil(_PIXELS / patch)
    return _PATCHES[0] * edge, _PATCHES[1] * edge


def _patch(config: Any) -> int:
    """Pixels along the longer edge of a patch; 1 where no patches are named."""
    settings = [config, *(getattr(config, name, None) for name in _VISION)]
    stated = next((patch for each in settings if (patch := getattr(each, "patch_size", None))), 1)
    return max(stated) if isinstance(stated, list | tuple) else int(stated)


def _with_size(model: Any, task: Task, size: tuple[int, int], *, mask: bool) -> PicturesModule:
    """The module with images of one size as its inputs."""
    vision = next((each for name in _VISION if (each := getattr(model.config, name, None)) is not None), model.config)
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
    """The outputs of the example; ``cut``: the lower and the right half of every image is padding."""
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
