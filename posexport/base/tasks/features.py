"""The states of a model without a head, and the vectors that it projects them to."""

from posexport.base.tasks.sentence_embedding import FEATURE_EXTRACTION
from posexport.base.tasks.task import ANY, PipelineTask, Task

TASK = Task(
    name="features",
    what="the hidden states",
    outputs={"text_embeds": ANY, "image_embeds": ANY, "last_hidden_state": ANY, "pooler_output": ANY},
    ends=("ModelWithProjection", "Model", "Encoder"),
    pipelines=(
        FEATURE_EXTRACTION,
        PipelineTask("image-feature-extraction", "images:ImageFeatureExtraction", "images"),
    ),
)
