"""Labels of tokens."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task

TASK = Task(
    name="token-classification",
    what="logits over labels at every token",
    outputs={"logits": OF_TOKENS},
    ends=("ForTokenClassification",),
    auto="AutoModelForTokenClassification",
    pipelines=(PipelineTask("token-classification", "token_classification:TokenClassification"),),
)
