"""Points of a body (ViTPose, arXiv:2204.12484)."""

from posexport.base.spec import BATCH, HEIGHT, WIDTH
from posexport.base.tasks.task import Task

TASK = Task(
    name="keypoint-detection",
    what="a heat map of an image for every keypoint",
    outputs={"heatmaps": (BATCH, "keypoints", HEIGHT, WIDTH)},
    sizes_vary=True,
    ends=("ForPoseEstimation", "ForKeypointDetection"),
    auto="AutoModelForKeypointDetection",
)
