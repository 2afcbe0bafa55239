"""What export and proof need to know of a definition of ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from posexport.definition.definition import Definition
from posexport.sources.source import Source
from posexport.spec import Limits, ModelSpec, PairRules, TextRules


def spec_of(model: Definition, task: str) -> ModelSpec:
    """What the definition says of itself, as the record that sources and bundles share."""
    encodings = [encoding.spec for encoding in model.encodings]
    return ModelSpec(
        task=task,
        encoding=encodings[0],
        encodings=encodings if any(spec != encodings[0] for spec in encodings) else [],
        limits=Limits.of(model.limits, model.plan),
        inputs=model.inputs,
        outputs=model.outputs,
    )


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
    text_rules: TextRules | None = None,
    pair_rules: PairRules | None = None,
) -> Source:
    """The source of a definition. ``longest``: where its inputs end although its encoding takes longer ones."""
    spec = spec_of(model, task)
    limits = spec.limits
    if longest is not None:
        limit = longest if limits.max_length is None else min(longest, limits.max_length)
        boundaries = sorted({*(length for length in limits.boundaries if length < limit), limit})
        trained = limit if limits.trained_length is None else min(limit, limits.trained_length)
        limits = msgspec.structs.replace(limits, max_length=limit, trained_length=trained, boundaries=boundaries)
    return Source(
        **msgspec.structs.replace(spec, limits=limits, text_rules=text_rules, pair_rules=pair_rules).facts,
        name=name,
        label=label,
        kind=kind,
        module=model.eval(),
        sha256=sha256,
        promises=model.promises,
        parts=model.parts,
        files=files or {},
        remarks=list(remarks),
    )
