"""A vector for a text, pooled from its tokens' states by the modules of sentence-transformers."""

from posexport.base.spec import BATCH
from posexport.base.tasks.task import PipelineTask, Task

FEATURE_EXTRACTION = PipelineTask("feature-extraction", "feature_extraction:FeatureExtraction")
TASK = Task(
    name="sentence-embedding",
    what="one vector a text",
    outputs={"sentence_embedding": (BATCH, "channels")},
    pipelines=(FEATURE_EXTRACTION,),
)
