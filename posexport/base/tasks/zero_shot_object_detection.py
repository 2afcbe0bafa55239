"""Boxes of objects that texts describe (OWL-ViT, arXiv:2205.06230)."""

from posexport.base.spec import BATCH
from posexport.base.tasks.task import PipelineTask, Task

TASK = Task(
    name="zero-shot-object-detection",
    what="boxes of every image, and how well each fits every text",
    outputs={
        "logits": (BATCH, "boxes", "texts"),
        "pred_boxes": (BATCH, "boxes", "edges"),
        "objectness_logits": (BATCH, "boxes"),
    },
    ends=("ForObjectDetection",),
    auto="AutoModelForZeroShotObjectDetection",
    needs=("text_config",),
    pipelines=(
        PipelineTask("zero-shot-object-detection", "zero_shot_object_detection:ZeroShotObjectDetection", "images"),
    ),
)
