"""Labels of pixels, or masks with labels (MaskFormer, arXiv:2107.06278)."""

from posexport.base.spec import BATCH, HEIGHT, WIDTH
from posexport.base.tasks.task import ANY, PipelineTask, Task

TASK = Task(
    name="image-segmentation",
    what="logits over labels for every pixel of an image, or a mask and logits for every query",
    outputs={
        # of pixels, or of DETR's queries
        "logits": ANY,
        "pred_boxes": (BATCH, "queries", "edges"),
        "pred_masks": (BATCH, "queries", HEIGHT, WIDTH),
        "class_queries_logits": (BATCH, "queries", "labels"),
        "masks_queries_logits": (BATCH, "queries", HEIGHT, WIDTH),
    },
    sizes_vary=True,
    ends=("ForSemanticSegmentation", "ForInstanceSegmentation", "ForUniversalSegmentation", "ForSegmentation"),
    auto="AutoModelForSemanticSegmentation",
    pipelines=(PipelineTask("image-segmentation", "image_segmentation:ImageSegmentation", "images"),),
)
