"""A text from a text: two graphs, an encoder and a decoder with a KV cache."""

from posexport.base.tasks.task import OF_TOKENS, PipelineTask, Task

TASK = Task(
    name="text2text-generation",
    what="an encoder's states, and logits of the next token by a decoder that reads them",
    outputs={"logits": OF_TOKENS},
    ends=("ForConditionalGeneration", "MTModel", "ForTextToText"),
    auto="AutoModelForSeq2SeqLM",
    pipelines=(
        PipelineTask("text2text-generation", "text2text_generation:Text2TextGeneration"),
        PipelineTask("summarization", "text2text_generation:Summarization"),
        PipelineTask("translation", "text2text_generation:Translation"),
    ),
)
