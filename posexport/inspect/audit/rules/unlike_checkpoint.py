"""PX604: outputs that are not the checkpoint's, by the proof of `posexport verify`."""

from collections.abc import Iterator

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject


def _check(subject: Subject) -> Iterator[Place]:
    if subject.proof is not None and subject.proof.passed is False:
        yield Place(
            f"posexport verify: {subject.proof.text}", [value.name or "" for value in subject.graph.outputs][:1]
        )


RULE = Rule(
    code="PX604",
    name="unlike-checkpoint",
    severity="error",
    finds="outputs of the graph are not those of the checkpoint, by the proof of posexport verify",
    why="The proof compares the file with a float64 run of the checkpoint over lengths, batches and paddings.",
    remedy="posexport verify FILE --against CHECKPOINT shows where it fails; posexport convert CHECKPOINT writes "
    "one that passes.",
    check=_check,
    reads="checkpoint",
)
