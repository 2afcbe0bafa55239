"""The pass: linear projections and word embeddings of a float32 graph in int8, by rows."""

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.chosen import choose
from posexport.precision.derived import DerivedTensors
from posexport.precision.imports import import_microsoft
from posexport.precision.rows import embeddings
from posexport.precision.rows.products import Products
from posexport.precision.static.calibration import Calibration, measure
from posexport.precision.static.scales import static_scales
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
) -> dict[str, str]:
    """Change ``model`` in place; answers the classes of tensors with what they are stored in.

    ``calibration``: texts that static scales are measured on, in the place of a scale for every row.

    After all graph passes, which know float projections. Normalisations, attention and positions stay in float32.

    Raises:
        PosexportError: the provider has no kernel for products of uint8 and int8, or ``--keep-float`` matches nothing.
    """
    _check_kernel(target)
    chosen = choose(model, interface, options)
    tensors = DerivedTensors(model)
    ranges = {} if calibration is None else measure(model, chosen.projections, calibration)
    products = Products(tensors, target, chosen.tied, static_scales(ranges, chosen.projections, chosen.tied))
    for projection in chosen.projections:
        products.replace(projection)
    import_microsoft(model)
    for lookup in chosen.tables:
        embeddings.quantize(lookup, tensors)
    tensors.finish()
    static = sum(each.x in ranges for each in chosen.projections)
    return _classes(len(chosen.projections), chosen.left, len(chosen.tables), static)


def _check_kernel(target: Target) -> None:
    provider = target.provider
    if provider is None or provider.has_kernel("MatMulIntegerToFloat", MICROSOFT, MICROSOFT_OPSET, _UINT8):
        return
    raise PosexportError(
        f"--precision int8 multiplies uint8 rows by int8 weights, for which ONNX Runtime has no kernel on "
        f"{provider.label}; use --precision fp16, or --precision int8 --weight-only"
    )


def _classes(quantized: int, left: int, tables: int, static: int) -> dict[str, str]:
    stored = {}
    if quantized:
        kept = f", {left} in float32" if left else ""
        stored["linear weights"] = f"int8 with a scale for each channel ({quantized}{kept})"
        measured = f"uint8 with static scales, measured on texts ({static})" if static else ""
        by_row = "uint8 with a scale for each row" if static < quantized else ""
        stored["activations of linear projections"] = ", ".join(filter(None, (measured, by_row)))
    if tables:
        stored["word embeddings"] = "int8 with a scale for each row"
    stored["positions, normalisations and all else"] = "float32"
    return stored
