"""Images compared with texts (CLIP, arXiv:2103.00020)."""

from posexport.base.tasks.task import PipelineTask, Task

TASK = Task(
    name="zero-shot-image-classification",
    what="how well every image fits every text, and the vectors of both",
    outputs={
        "logits_per_image": ("images", "texts"),
        "logits_per_text": ("texts", "images"),
        "text_embeds": ("texts", "channels"),
        "image_embeds": ("images", "channels"),
    },
    ends=("Model",),
    auto="AutoModelForZeroShotImageClassification",
    needs=("text_config", "vision_config"),
    pipelines=(
        PipelineTask(
            "zero-shot-image-classification", "zero_shot_image_classification:ZeroShotImageClassification", "images"
        ),
    ),
)
