"""Pixels that a text describes (CLIPSeg, arXiv:2112.10003)."""

from posexport.base.spec import BATCH, HEIGHT, WIDTH
from posexport.base.tasks.task import Task

TASK = Task(
    name="zero-shot-image-segmentation",
    what="how well every pixel of an image fits its text",
    outputs={"logits": (BATCH, HEIGHT, WIDTH)},
    ends=("ForImageSegmentation",),
    needs=("text_config",),
)
