"""The pass: linear projections and word embeddings of a float32 graph in int8, by rows."""

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.chosen import choose
from posexport.precision.derived import DerivedTensors
from posexport.precision.imports import import_microsoft
from posexport.precision.rows import embeddings
from posexport.precision.rows.products import Products
from posexport.spec import Interface
from posexport.targets.dtypes import DType
from posexport.targets.precision_options import PrecisionOptions
from posexport.targets.target import MICROSOFT, MICROSOFT_OPSET, Target

_UINT8 = DType(name="uint8", onnx="UINT8", ort="uint8", safetensors="U8")


def quantize_rows(model: ir.Model, interface: Interface, target: Target, options: PrecisionOptions) -> dict[str, str]:
    """Change ``model`` in place; answers the classes of tensors with what they are stored in.

    After all graph passes, which know float projections. Normalisations, attention and positions stay in float32.

    Raises:
        PosexportError: the provider has no kernel for products of uint8 and int8, or ``--keep-float`` matches nothing.
    """
    _check_kernel(target)
    chosen = choose(model, interface, options)
    tensors = DerivedTensors(model)
    products = Products(tensors, target, chosen.tied)
    for projection in chosen.projections:
        products.replace(projection)
    import_microsoft(model)
    for lookup in chosen.tables:
        embeddings.quantize(lookup, tensors)
    tensors.finish()
    return _classes(len(chosen.projections), chosen.left, len(chosen.tables))


def _check_kernel(target: Target) -> None:
    provider = target.provider
    if provider is None or provider.has_kernel("MatMulIntegerToFloat", MICROSOFT, MICROSOFT_OPSET, _UINT8):
        return
    raise PosexportError(
        f"--precision int8 multiplies uint8 rows by int8 weights, for which ONNX Runtime has no kernel on "
        f"{provider.label}; use --precision fp16, or --precision int8 --weight-only"
    )


def _classes(quantized: int, left: int, tables: int) -> dict[str, str]:
    stored = {}
    if quantized:
        kept = f", {left} in float32" if left else ""
        stored["linear weights"] = f"int8 with a scale for each channel ({quantized}{kept})"
        stored["activations of linear projections"] = "uint8 with a scale for each row"
    if tables:
        stored["word embeddings"] = "int8 with a scale for each row"
    stored["positions, normalisations and all else"] = "float32"
    return stored
