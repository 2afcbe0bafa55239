"""Bring a finished float32 graph to the precision that was asked for."""

from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.blocks.quantize import quantize_blocks
from posexport.precision.calibration import Calibration
from posexport.precision.half.arithmetic import check_arithmetic, remarks
from posexport.precision.half.half import to_half
from posexport.precision.rows.quantize import quantize_rows
from posexport.spec import Interface
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.precisions import FP32
from posexport.targets.target import Target

#: what is left of a graph whose weights are quantised
_REST = {"positions, normalisations and all else": "float32"}


@dataclass(frozen=True)
class PrecisionResult:
    """What the graph's tensors are stored in now.

    Attributes:
        classes: class of tensors, such as ``linear weights`` -> their precision in words.
        remarks: sentences for the user.
    """

    classes: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def apply(
    model: ir.Model,
    interface: Interface,
    target: Target,
    options: PrecisionOptions,
    calibration: Calibration | None = None,
) -> PrecisionResult:
    """Change ``model`` in place: guarded, with its functions attached.

    ``interface``: the source, whose inputs' dtypes are those that the graph has afterwards. ``calibration``: texts that
    static scales of activations are measured on.

    Raises:
        PosexportError: the target cannot compute that precision.
    """
    if options.name == FP32.name:
        return PrecisionResult()
    if options.by_rows:
        return PrecisionResult(quantize_rows(model, interface, target, options, calibration))
    stored: dict[str, str] = {}
    if options.precision.half:
        check_arithmetic(target)
    if options.blocked:
        stored = quantize_blocks(model, interface, target, options)
    if options.precision.half:
        # after it: float32 scales and activations of its operators become 16 bits as all others do
        return PrecisionResult({**stored, **to_half(model, interface, target, options)}, remarks(target))
    if stored:
        return PrecisionResult({**stored, **_REST})
    raise PosexportError(f"--precision {options.name} cannot be made")
