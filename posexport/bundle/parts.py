"""Whether the graphs of a bundle fit together, by its manifest."""

from typing import TYPE_CHECKING

from posexport.errors import PosexportError
from posexport.spec import CARRIED, ENCODER_PAST, STATES_MASK, Axis, InputSpec, is_cache_output
from posexport.targets.dtypes import MODEL_DTYPE

if TYPE_CHECKING:
    from posexport.bundle.manifest import Manifest


def check_parts(manifest: "Manifest") -> None:
    """Check that the parts fit together: inputs are fed with the right types and axes, all outputs are computed.

    Raises:
        PosexportError: naming the first part that does not fit.
    """
    known: dict[str, tuple[str, list[Axis]]] = {spec.name: (spec.dtype, spec.axes) for spec in manifest.inputs}
    computed: set[str] = set()
    first: set[str] = set()
    for part in manifest.parts:
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
        outputs = {whole: (_output_dtype(manifest, name), names[name]) for name, whole in part.output_names.items()}
        repeated = known.keys() & outputs.keys()
        if part.when == "later" and repeated <= first:
            # it runs in other calls than the part for first calls and has the same outputs
            repeated = {whole for whole in repeated if known[whole] != outputs[whole]}
        if len(outputs) < len(part.output_names) or repeated:
            raise PosexportError(f"its part {part.file} gives an output a name that is already used")
        first |= outputs.keys() if part.when == "first" else set()
        known |= outputs
        computed |= outputs.keys()
    if lacking := [
        spec.name for spec in manifest.outputs if spec.name not in computed or known[spec.name][1] != spec.axes
    ]:
        raise PosexportError(f"none of its parts gives {lacking[0]} as it says")


def _output_dtype(manifest: "Manifest", name: str) -> str:
    """Element type of the output ``name`` of a part: caches have the type of activations, masks are int64."""
    if name == STATES_MASK:
        return "int64"
    recipe = manifest.recipe
    half = recipe.io == "half" or is_cache_output(name)
    return recipe.dtype.name if half else MODEL_DTYPE.name


def _takes(spec: InputSpec, fed: tuple[str, list[Axis]] | None) -> bool:
    """Whether an input accepts a value of this type and these axes."""
    if fed is None or fed[0] != spec.dtype or len(fed[1]) != len(spec.axes):
        return False
    # the axis of encoder states may be empty, and one that may have any size takes a fixed one
    return all(
        expected in (axis, ENCODER_PAST) or (isinstance(expected, str) and isinstance(axis, int))
        for expected, axis in zip(spec.axes, fed[1], strict=True)
    )
