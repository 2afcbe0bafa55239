"""The types of a model's inputs and outputs in half precision."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from posexport.spec import InputSpec, is_cache_input
from posexport.targets.precision_options import PrecisionOptions

if TYPE_CHECKING:
    from posexport.sources.source import Source


def with_precision(source: "Source", options: PrecisionOptions) -> "Source":
    """``source`` with the inputs that its graphs have in that precision: a KV cache in 16 bits, values as asked for.

    The module stays as it is, float32, and so does its trace.
    """
    if not options.half:
        return source

    def inputs(specs: Sequence[InputSpec]) -> list[InputSpec]:
        name = options.dtype.name
        return [
            msgspec.structs.replace(spec, dtype=name)
            if is_cache_input(spec) or (options.io == "half" and spec.role == "values")
            else spec
            for spec in specs
        ]

    parts = [
        replace(part, spec=msgspec.structs.replace(part.spec, inputs=inputs(part.spec.inputs))) for part in source.parts
    ]
    return msgspec.structs.replace(source, inputs=inputs(source.inputs), parts=parts)
