"""Whether the graphs of a bundle fit together, by its manifest."""

from collections.abc import Sequence

from posexport.base.spec import (
    CARRIED,
    ENCODER_PAST,
    STATES_MASK,
    Axis,
    InputSpec,
    OutputSpec,
    PartSpec,
    is_cache_output,
)
from posexport.errors import PosexportError


def check_parts(
    parts: Sequence[PartSpec], inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec], *, carried: str, real: str
) -> None:
    """Check that the parts fit together: inputs are fed with the right types and axes, all outputs are computed.

    Args:
        parts: in the order in which they run.
        inputs: of the model.
        outputs: of the model.
        carried: element type of caches.
        real: element type of other outputs.

    Raises:
        PosexportError: naming the first part that does not fit.
    """
    known: dict[str, tuple[str, list[Axis]]] = {spec.name: (spec.dtype, spec.axes) for spec in inputs}
    computed: set[str] = set()
    first: set[str] = set()
    for part in parts:
        for spec in part.inputs:
            source = part.input_names.get(spec.name)
            if source is None and spec.role in CARRIED:
                continue  # empty
            if source is None or not _takes(spec, known.get(source)):
                raise PosexportError(f"its part {part.file} takes {spec.name}, and nothing that fits feeds it")
        names = {spec.name: spec.axes for spec in part.outputs}
        # outputs that do not change in later calls are not computed again
        complete = set(part.output_names) == set(names) or (
            part.when == "later" and set(part.output_names) < set(names)
        )
        if not set(part.input_names) <= {spec.name for spec in part.inputs} or not complete:
            raise PosexportError(f"its part {part.file} feeds or gives what it does not have")
        given = {
            whole: ("int64" if name == STATES_MASK else carried if is_cache_output(name) else real, names[name])
            for name, whole in part.output_names.items()
        }
        repeated = known.keys() & given.keys()
        if part.when == "later" and repeated <= first:
            # it runs in other calls than the part for first calls and has the same outputs
            repeated = {whole for whole in repeated if known[whole] != given[whole]}
        if len(given) < len(part.output_names) or repeated:
            raise PosexportError(f"its part {part.file} gives an output a name that is already used")
        first |= given.keys() if part.when == "first" else set()
        known |= given
        computed |= given.keys()
    if lacking := [spec.name for spec in outputs if spec.name not in computed or known[spec.name][1] != spec.axes]:
        raise PosexportError(f"none of its parts gives {lacking[0]} as it says")


def _takes(spec: InputSpec, fed: tuple[str, list[Axis]] | None) -> bool:
    """Whether an input accepts a value of this type and these axes."""
    if fed is None or fed[0] != spec.dtype or len(fed[1]) != len(spec.axes):
        return False
    # the axis of encoder states may be empty, and one that may have any size takes a fixed one
    return all(
        expected in (axis, ENCODER_PAST) or (isinstance(expected, str) and isinstance(axis, int))
        for expected, axis in zip(spec.axes, fed[1], strict=True)
    )
