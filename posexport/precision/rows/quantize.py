"""The pass: linear projections and word embeddings of a float32 graph in int8, by rows."""

from collections.abc import Mapping

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.calibration import Calibration
from posexport.precision.chosen import Chosen, choose
from posexport.precision.derived import DerivedTensors
from posexport.precision.imports import import_microsoft
from posexport.precision.result import PrecisionResult
from posexport.precision.rows import embeddings
from posexport.precision.rows.products import Products, replacement
from posexport.precision.rows.row_scales import RowScale, row_scales
from posexport.precision.rows.static_scales import StaticScale, static_scales
from posexport.precision.smoothing import Smoother
from posexport.spec import Interface
from posexport.targets.dtypes import DType
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.target import MICROSOFT, MICROSOFT_OPSET, Target

_UINT8 = DType(name="uint8", onnx="UINT8", ort="uint8", safetensors="U8")


def quantize_rows(
    model: ir.Model,
    interface: Interface,
    target: Target,
    options: PrecisionOptions,
    calibration: Calibration | None = None,
) -> PrecisionResult:
    """Change ``model`` in place; answers the classes of tensors with what they are stored in.

    ``calibration``: inputs that static scales are measured on, where ``options`` ask for these; else what zero points
    and smoothing of rows are decided by, all plain without it.

    After all graph passes, which know float projections. Normalisations, attention and positions stay in float32.

    Raises:
        PosexportError: the provider has no kernel for products of uint8 and int8.
    """
    _check_kernel(target)
    chosen = choose(model, interface, options, lambda _: replacement(target, static=options.static))
    scales = _scales(model, chosen, options, calibration)
    tensors = DerivedTensors(model)
    products = Products(tensors, target, chosen.tied, Smoother(tensors, chosen.projections), scales)
    for projection in chosen.projections:
        products.replace(projection)
    import_microsoft(model)
    for lookup in chosen.tables:
        embeddings.quantize(lookup, tensors)
    tensors.finish()
    return chosen.result(_classes(chosen, scales), 8, 8)


def _scales(
    model: ir.Model, chosen: Chosen, options: PrecisionOptions, calibration: Calibration | None
) -> Mapping[ir.Value, StaticScale | RowScale]:
    if calibration is None:
        return {}
    measure = static_scales if options.static else row_scales
    return measure(model, chosen.projections, chosen.tied, calibration)


def _check_kernel(target: Target) -> None:
    provider = target.provider
    if provider is None or provider.has_kernel("MatMulIntegerToFloat", MICROSOFT, MICROSOFT_OPSET, _UINT8):
        return
    raise PosexportError(
        f"--precision int8 multiplies uint8 rows by int8 weights, for which ONNX Runtime has no kernel on "
        f"{provider.label}; use --precision fp16, or --precision int8 --weight-only"
    )


def _classes(chosen: Chosen, scales: Mapping[ir.Value, StaticScale | RowScale]) -> dict[str, str]:
    stored = {}
    if chosen.projections:
        stored["linear weights"] = "int8 with a scale for each channel"
        of_each = [scales.get(each.x) for each in chosen.projections]
        static = sum(isinstance(scale, StaticScale) for scale in of_each)
        measured = f"uint8 with static scales, measured on texts ({static})" if static else ""
        by_row = "uint8 with a scale for each row" if static < len(of_each) else ""
        stored["activations of linear projections"] = ", ".join(filter(None, (measured, by_row)))
        if smooth := sum(scale is not None and scale.smoothing is not None for scale in of_each):
            stored["activations of linear projections"] += f", {smooth} of {len(of_each)} smoothed by channels"
    if chosen.tables:
        stored["word embeddings"] = "int8 with a scale for each row"
    stored["positions, normalisations and all else"] = "float32"
    return stored
