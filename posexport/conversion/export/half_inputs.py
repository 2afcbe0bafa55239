"""Inputs of 16 bits in a source whose graph computes in half precision."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from posexport.base.spec import InputSpec, is_cache_input
from posexport.base.targets.dtypes import MODEL_DTYPE
from posexport.base.targets.precisions import PrecisionOptions
from posexport.sources.source import Source


def with_precision(source: Source, options: PrecisionOptions) -> Source:
    """``source`` with the inputs' dtypes in that precision: a KV cache of 16 bits, and values with ``--io half``.

    The module and its trace stay float32.
    """
    if not options.half:
        return source

    def inputs(specs: Sequence[InputSpec]) -> list[InputSpec]:
        name = options.dtype.name
        return [
            msgspec.structs.replace(spec, dtype=name)
            if spec.dtype == MODEL_DTYPE.name
            and (is_cache_input(spec) or (options.io == "half" and spec.role == "values"))
            else spec
            for spec in specs
        ]

    parts = [
        replace(part, spec=msgspec.structs.replace(part.spec, inputs=inputs(part.spec.inputs))) for part in source.parts
    ]
    return msgspec.structs.replace(source, inputs=inputs(source.inputs), parts=parts)
