"""What export and proof need to know of a definition of ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from posexport.definition.definition import Definition
from posexport.sources.source import Source


def source_of(
    model: Definition,
    *,
    name: str,
    label: str | None = None,
    kind: Literal["builtin", "huggingface"],
    task: str,
    sha256: str,
    longest: int | None = None,
    files: dict[str, Path] | None = None,
    remarks: Sequence[str] = (),
) -> Source:
    """The source of a definition. ``longest``: where its inputs end although its encoding takes longer ones."""
    limits = model.limits
    if longest is not None:
        limit = longest if limits.max_length is None else min(longest, limits.max_length)
        boundaries = sorted({*(length for length in limits.boundaries if length < limit), limit})
        trained = limit if limits.trained_length is None else min(limit, limits.trained_length)
        limits = msgspec.structs.replace(limits, max_length=limit, trained_length=trained, boundaries=boundaries)
    encodings = [encoding.spec for encoding in model.encodings]
    return Source(
        name=name,
        label=label,
        kind=kind,
        module=model.eval(),
        inputs=model.inputs,
        outputs=model.outputs,
        limits=limits,
        encoding=encodings[0],
        encodings=encodings if any(spec != encodings[0] for spec in encodings) else [],
        task=task,
        sha256=sha256,
        plan=model.plan,
        promises=model.promises,
        parts=model.parts,
        files=files or {},
        remarks=list(remarks),
    )
