"""Bring a finished float32 graph to the precision that was asked for."""

from dataclasses import dataclass, field

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.blocks.quantize import quantize_blocks
from posexport.precision.half.half import to_half
from posexport.precision.rows.quantize import quantize_rows
from posexport.spec import Interface
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.precisions import FP32, PRECISIONS
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


def apply(model: ir.Model, interface: Interface, target: Target, options: PrecisionOptions) -> PrecisionResult:
    """Change ``model`` in place: guarded, with its functions attached.

    ``interface``: the source, whose inputs' dtypes are those that the graph has afterwards.

    Raises:
        PosexportError: the target cannot compute that precision.
    """
    if options.name == FP32.name:
        return PrecisionResult()
    if options.precision.weight_bits == 8 and not options.blocked:
        return PrecisionResult(quantize_rows(model, interface, target, options))
    if options.blocked:
        if options.precision.half:
            _check(target, options)
        stored = quantize_blocks(model, interface, target, options)
        # after it: float32 scales and activations of its operators become 16 bits as all others do
        rest = to_half(model, interface, target, options) if options.precision.half else _REST
        return PrecisionResult({**stored, **rest})
    if options.precision.half and not options.precision.quantized:
        _check(target, options)
        return PrecisionResult(to_half(model, interface, target, options))
    raise PosexportError(f"--precision {options.name} cannot be made")


#: a provider with a kernel for any of these computes in a type
_ARITHMETIC = ("MatMul", "Attention", "Max")


def _check(target: Target, options: PrecisionOptions) -> None:
    """PosexportError where the target's provider has no arithmetic in that precision at all."""
    provider = target.provider
    if provider is None or not all(target.needs_kernel(operator) for operator in _ARITHMETIC):
        return
    others = [each for each in PRECISIONS.values() if each.half and not each.quantized and each.name != options.name]
    raise PosexportError(
        f"{provider.label} has no kernels that compute in {options.precision.dtype.name}, so --target {target.name} "
        f"cannot have --precision {options.name}; use --precision {' or '.join(each.name for each in others)}, or "
        "another --target"
    )
