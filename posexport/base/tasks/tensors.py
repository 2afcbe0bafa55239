"""A class of transformers without a record: what it returns, as it is."""

from posexport.base.tasks.task import Task

TASK = Task(
    name="tensors",
    what="all tensors that the model returns, under their names",
    sizes_vary=True,
)
