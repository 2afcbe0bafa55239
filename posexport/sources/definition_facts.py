"""The facts of a model that is a definition: what it says of itself."""

from collections.abc import Sequence

import msgspec

from posexport.definition.definition import Definition
from posexport.sources.source import Model
from posexport.spec import Limits, ModelSpec


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


def model_of(
    definition: Definition,
    task: str,
    *,
    longest: int | None = None,
    trial: Model | None = None,
    remarks: Sequence[str] = (),
) -> Model:
    """A definition and what it says of itself.

    ``longest``: where its inputs end although its encoding takes longer ones. ``trial``: of a
    definition around another library's module, the facts that running that module showed; posexport does not know its
    encoding.
    """
    facts = spec_of(definition, task).facts
    if longest is not None:
        limits = facts["limits"]
        limit = longest if limits.max_length is None else min(longest, limits.max_length)
        boundaries = sorted({*(length for length in limits.boundaries if length < limit), limit})
        trained = limit if limits.trained_length is None else min(limit, limits.trained_length)
        facts["limits"] = msgspec.structs.replace(
            limits, max_length=limit, trained_length=trained, boundaries=boundaries
        )
    if trial is not None:
        facts |= {"encoding": None, "encodings": [], "further": trial.further, "notes": trial.notes}
        remarks = [*remarks, *trial.remarks]
    return Model(
        **facts,
        module=definition.eval(),
        promises=definition.promises,
        parts=definition.parts,
        remarks=list(remarks),
    )
