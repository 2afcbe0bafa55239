"""Entities of labels that the caller names (GLiNER, arXiv:2311.08526)."""

from posexport.base.spec import BATCH, LABELS, WORDS
from posexport.base.tasks.task import PipelineTask, Task

TASK = Task(
    name="zero-shot-token-classification",
    what="how well the spans of a text, or its words, fit labels that are written before it",
    outputs={"logits": (BATCH, WORDS, LABELS, "spans or edges")},
    pipelines=(
        PipelineTask("zero-shot-token-classification", "zero_shot_token_classification:ZeroShotTokenClassification"),
    ),
)
