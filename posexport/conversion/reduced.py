"""Whether a conversion is proven by a reduced model, and that model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from posexport.base.targets.precisions import PRECISIONS

if TYPE_CHECKING:
    from posexport.conversion.graphs import Export
    from posexport.proof.reduced.reduction import Reduction
    from posexport.sources.source import Source


class Reduced(NamedTuple):
    """A reduced model to prove a large one by; ``export`` writes its graphs into a folder."""

    reduction: "Reduction"
    export: Callable[[Path], object]


def reduced_model(
    source: "Source",
    export: "Export",
    proof: Literal["auto", "full", "reduced"],
    remark: Callable[[str], None],
) -> Reduced | None:
    """The reduced model that ``source`` (in float32) is proven by; None: it is proven itself."""
    from posexport.conversion.export.half_inputs import with_precision
    from posexport.proof.reduced.reduction import LARGE, reduction_of, weights_of
    from posexport.proof.references.precision_copy import shareable
    from posexport.sources.lazy_parameters import materialize, narrow

    if proof == "full" or (proof == "auto" and weights_of(source) < LARGE):
        return None

    # calls of a few layers, which the reduction may take, need parameters in float32
    reduction = reduction_of(source, texts=bool(export.texts))
    # a copy that cannot read the parameters where they are would have them all
    (narrow if shareable(source.module) else materialize)(source.module.parameters())
    if isinstance(reduction, str):
        if proof == "reduced":
            remark(f"--proof reduced: {source.public_name} is proven as a whole: {reduction}")
        return None
    if proof == "auto" and 2 * reduction.kept > reduction.layers:
        return None  # it would cost what it saves
    materialize(reduction.source.module.parameters())  # its grid reads them many times
    # cut into the same files
    original = export.layout.arranged(
        msgspec.structs.replace(reduction.source, files=source.files), PRECISIONS[export.recipe.precision]
    )
    full, small = (with_precision(each, export.recipe) for each in (source, original))
    return Reduced(replace(reduction, full=full, source=small), lambda folder: export(original, folder))
