"""The word that a mask replaces."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task

TASK = Task(
    name="fill-mask",
    what="logits over the vocabulary at every token",
    outputs={"logits": OF_TOKENS},
    ends=("ForMaskedLM",),
    auto="AutoModelForMaskedLM",
    pipelines=(PipelineTask("fill-mask", "fill_mask:FillMask"),),
)
