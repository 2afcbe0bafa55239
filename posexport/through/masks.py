"""SAM and SAM 2 as two graphs, with the names of transformers.js.

``vision_encoder.onnx`` maps an image to features, once. ``prompt_encoder_mask_decoder.onnx`` maps features and points
to masks with scores; each group of points describes one mask.

Shape letters: B images, G groups of points, P points of a group.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, Axis, InputSpec, OutputSpec, PartSpec
from posexport.base.tasks.task import Task
from posexport.checkpoints.opened import Checkpoint
from posexport.errors import PosexportError
from posexport.models.definition import Part
from posexport.modules.user_module import by_name
from posexport.sources.example import example
from posexport.sources.source import Model
from posexport.through.agreement import use_posexport_attention
from posexport.through.inputs import PIXELS, inputs_of
from posexport.through.module import SymbolicSizes, checkpoint_source

VISION, DECODER = "vision_encoder.onnx", "prompt_encoder_mask_decoder.onnx"
FEATURES, POSITIONS = "image_embeddings", "image_positional_embeddings"
POINTS, LABELS = "input_points", "input_labels"
GROUPS, NUMBER = f"point_{BATCH}", f"point_{SEQUENCE}"
#: tolerance, relative to the largest element, between the parts and transformers' forward
_ROUNDING = 1e-4


class ImageEncoder(nn.Module):
    """Maps an image to features: SAM's with their position embeddings, SAM 2's at three resolutions."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        if hasattr(self.model, "no_memory_embedding"):
            # the body of a method that runs without gradients, which a trace would keep as a node
            features = type(self.model).get_image_embeddings.__wrapped__(self.model, pixel_values)
            return {f"{FEATURES}.{number}": x for number, x in enumerate(features)}
        positions = self.model.get_image_wide_positional_embeddings().repeat(pixel_values.shape[0], 1, 1, 1)
        return {FEATURES: self.model.vision_encoder(pixel_values)[0], POSITIONS: positions}


class MaskDecoder(nn.Module):
    """Maps features and points to masks with scores."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_points: Tensor, input_labels: Tensor, **tensors: Any) -> dict[str, Tensor]:
        points_BGP2, labels_BGP = input_points, input_labels
        images, groups = labels_BGP.shape[:2]
        # in a trace, SAM 2's features are one argument, a list
        if isinstance(several := tensors.get(FEATURES), list | tuple):
            tensors = {f"{FEATURES}.{number}": x for number, x in enumerate(several)}
        # every group becomes a row: transformers would repeat features by a number that the trace makes constant
        points = {POINTS: points_BGP2.flatten(0, 1)[:, None], LABELS: labels_BGP.flatten(0, 1)[:, None]}
        features = {name: x[:, None].expand(-1, groups, -1, -1, -1).flatten(0, 1) for name, x in tensors.items()}
        if POSITIONS in features:
            sparse, dense = self.model.prompt_encoder(**points, input_boxes=None, input_masks=None)
            masks, scores = self.model.mask_decoder(
                **features, sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense, multimask_output=True
            )
            outputs = {"iou_scores": scores, "pred_masks": masks}
        else:
            whole = self.model(**points, image_embeddings=list(features.values()), return_dict=True)
            outputs = {name: whole[name] for name in ("iou_scores", "pred_masks", "object_score_logits")}
        return {name: x.reshape(images, groups, *x.shape[2:]) for name, x in outputs.items()}


class Masks(SymbolicSizes):
    """The image encoder followed by the mask decoder: the reference of both graphs together."""

    @property
    def example_and_axes(self) -> tuple[dict[str, Tensor], dict[str, list[Axis]]] | tuple[()]:
        """Example inputs with labels that are ids, and their axes."""
        tensors, axes = super().example_and_axes  # type: ignore[misc]  # other axes than tokens are there
        return {**tensors, LABELS: tensors[LABELS].clamp(min=0)}, axes

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        features = ImageEncoder(self.model)(tensors.pop(PIXELS))
        return {**MaskDecoder(self.model)(**tensors, **features), **features}


def make(checkpoint: Checkpoint, model: Any, task: Task) -> Model:
    """The ``model`` of a checkpoint as two graphs.

    Raises:
        PosexportError: the masks differ from those of transformers' forward.
    """
    label = checkpoint.config.label
    images = inputs_of(label, model, pairs=True)
    groups: list[Any] = [BATCH, GROUPS, NUMBER]
    (edge,) = {axis for axis in images[0].axes[2:] if isinstance(axis, int)}
    inputs = [
        *images,
        InputSpec(name=POINTS, dtype="float32", axes=[*groups, 2], role="points", size=edge),
        InputSpec(name=LABELS, dtype="int64", axes=groups, role="prompts"),
    ]
    whole = Masks(model, (), inputs, with_positions=False).eval()
    tensors = example(inputs, whole.sizes({}))
    with torch.no_grad():
        expected = model(**tensors, multimask_output=True, return_dict=True)
    remarks = use_posexport_attention(label, whole)
    _check(label, whole, tensors, expected)
    source = checkpoint_source(checkpoint, whole, task.name, remarks)
    features = [spec for spec in source.outputs if spec.name.startswith(FEATURES) or spec.name == POSITIONS]
    masks = [spec for spec in source.outputs if spec not in features]
    parts = [
        _part(VISION, ImageEncoder(model), source.inputs[:1], features),
        _part(DECODER, MaskDecoder(model), [*source.inputs[1:], *map(_as_input, features)], masks),
    ]
    return msgspec.structs.replace(source, parts=parts)


def _part(file: str, module: nn.Module, inputs: list[InputSpec], outputs: list[OutputSpec]) -> Part:
    spec = PartSpec(
        file=file,
        inputs=inputs,
        outputs=outputs,
        input_names={each.name: each.name for each in inputs},
        output_names={each.name: each.name for each in outputs},
    )
    # names like image_embeddings.0 are one argument, a list
    arguments = {each.name.partition(".")[0]: each for each in inputs}
    named = [msgspec.structs.replace(each, name=name) for name, each in arguments.items()]
    return Part(spec, by_name(file, module.eval(), named, outputs).eval())


def _as_input(spec: OutputSpec) -> InputSpec:
    return InputSpec(name=spec.name, dtype="float32", axes=spec.axes, role="values")


def _check(label: str, whole: Masks, tensors: Mapping[str, Tensor], expected: Any) -> None:
    with torch.no_grad():
        actual = whole(**tensors)
    for name in ("iou_scores", "pred_masks"):
        if not float((actual[name] - expected[name]).abs().max()) <= _ROUNDING * float(expected[name].abs().max()):
            raise PosexportError(
                f"{label}: its image encoder and mask decoder give another {name} than the whole model; it is not "
                "converted through transformers"
            )
