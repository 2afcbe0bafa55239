"""A score of a pair of texts, by a generating model."""

from posexport.base.tasks.task import OF_BATCH, Task

TASK = Task(
    name="text-ranking",
    what="a score of a pair of texts, by a decoder's logits of yes and no",
    outputs={"logits": OF_BATCH},
)
