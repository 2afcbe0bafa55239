"""Boxes with labels (DETR, arXiv:2005.12872)."""

from posexport.base.spec import BATCH
from posexport.base.tasks.task import PipelineTask, Task

TASK = Task(
    name="object-detection",
    what="a box and logits over labels for every object query of an image",
    outputs={"logits": (BATCH, "queries", "labels"), "pred_boxes": (BATCH, "queries", "edges")},
    sizes_vary=True,
    ends=("ForObjectDetection",),
    auto="AutoModelForObjectDetection",
    pipelines=(PipelineTask("object-detection", "object_detection:ObjectDetection", "images"),),
)
