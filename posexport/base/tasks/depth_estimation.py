"""The depth of pixels."""

from posexport.base.tasks.task import OF_PIXELS, PipelineTask, Task

TASK = Task(
    name="depth-estimation",
    what="the depth of every pixel of an image",
    outputs={"predicted_depth": OF_PIXELS},
    sizes_vary=True,
    ends=("ForDepthEstimation",),
    auto="AutoModelForDepthEstimation",
    pipelines=(PipelineTask("depth-estimation", "depth_estimation:DepthEstimation", "images"),),
)
