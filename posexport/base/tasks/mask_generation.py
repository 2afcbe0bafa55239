"""Masks of objects at points of an image (SAM, arXiv:2304.02643; SAM 2, arXiv:2408.00714)."""

from posexport.base.spec import BATCH, HEIGHT, WIDTH
from posexport.base.tasks.task import PipelineTask, Task

TASK = Task(
    name="mask-generation",
    what="masks of an image for groups of points, each with a score, and the image's features",
    outputs={
        "iou_scores": (BATCH, "groups", "masks"),
        "pred_masks": (BATCH, "groups", "masks", HEIGHT, WIDTH),
        "object_score_logits": (BATCH, "groups", "scores"),
    },
    ends=("SamModel", "Sam2Model"),
    auto="AutoModelForMaskGeneration",
    pipelines=(PipelineTask("mask-generation", "mask_generation:MaskGeneration", "images"),),
)
