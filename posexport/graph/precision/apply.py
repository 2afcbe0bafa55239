"""Brings a finished float32 graph to the requested precision."""

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from posexport.base.spec import Interface
from posexport.base.targets.precisions import FP32, PrecisionOptions
from posexport.base.targets.target import Target
from posexport.graph.precision.selection import PrecisionResult

if TYPE_CHECKING:
    from posexport.graph.precision.blocks.stored_rows import StoredRows
    from posexport.graph.precision.calibration import Calibration


def apply(
    model: ir.Model,
    interface: Interface,
    target: Target,
    options: PrecisionOptions,
    calibration: "Calibration | None" = None,
    rows: "StoredRows | None" = None,
) -> PrecisionResult:
    """Change ``model`` in place: guarded, with its functions attached.

    ``interface``: the source, with the dtypes of inputs that the graph gets. ``calibration``: inputs on which int8
    activations are measured, and texts for GPTQ. ``rows``: of the source's weights of 4 bits, which are kept.

    Raises:
        PosexportError: the target cannot compute that precision.
    """
    if options.precision == FP32.name:
        return PrecisionResult()
    if options.by_rows:
        from posexport.graph.precision.rows.quantize import quantize_rows

        return quantize_rows(model, interface, target, options, calibration)
    result = PrecisionResult()
    if options.half:
        from posexport.graph.precision.half.half import to_half
        from posexport.graph.precision.half.kernels import check_arithmetic, remarks

        check_arithmetic(target)
    if options.blocked:
        from posexport.graph.precision.blocks.quantize import quantize_blocks

        result = quantize_blocks(model, interface, target, options, calibration, rows)
    if options.half:
        # after it: float32 scales and activations of its operators become 16 bits as all others do
        half = to_half(model, interface, target, options)
        return replace(result, classes={**result.classes, **half}, remarks=(*result.remarks, *remarks(target)))
    return replace(result, classes={**result.classes, "positions, normalisations and all else": "float32"})
