"""The part of a text with the answer to a question."""

from posexport.base.spec import BATCH, SEQUENCE
from posexport.base.tasks.task import PipelineTask, Task

TASK = Task(
    name="question-answering",
    what="start and end scores at every token",
    outputs={"start_logits": (BATCH, SEQUENCE), "end_logits": (BATCH, SEQUENCE)},
    ends=("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
    auto="AutoModelForQuestionAnswering",
    pipelines=(PipelineTask("question-answering", "question_answering:QuestionAnswering"),),
)
