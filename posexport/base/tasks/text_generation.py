"""The next token, by a decoder with a KV cache."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task

TASK = Task(
    name="text-generation",
    what="logits over the vocabulary of the next token, at every token",
    outputs={"logits": OF_TOKENS},
    ends=("ForCausalLM", "LMHeadModel"),
    auto="AutoModelForCausalLM",
    pipelines=(PipelineTask("text-generation", "text_generation:TextGeneration"),),
)
