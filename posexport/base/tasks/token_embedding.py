"""A vector for each token (ColBERT, arXiv:2004.12832)."""

from posexport.base.spec import BATCH, SEQUENCE
from posexport.base.tasks.task import Task

TASK = Task(
    name="token-embedding",
    what="a vector for each token, compared by MaxSim (ColBERT)",
    outputs={"token_embeddings": (BATCH, SEQUENCE, "channels")},
)
