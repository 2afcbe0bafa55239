"""Pages as pictures, found by texts: a vector for each token (ColPali, arXiv:2407.01449)."""

from posexport.base.spec import BATCH, SEQUENCE
from posexport.base.tasks.task import Task

TASK = Task(
    name="visual-document-retrieval",
    what="a vector for each token of a text or of a page's picture, compared by MaxSim (ColPali)",
    outputs={
        "embeddings": (BATCH, SEQUENCE, "channels"),
        "image_features": (BATCH, "image_tokens", "channels"),
    },
    ends=("ForRetrieval",),
    auto="AutoModelForPreTraining",
    needs=("vlm_config",),
)
