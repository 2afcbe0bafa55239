"""The pass: linear projections and word embeddings of a float32 graph in int8, by rows."""

import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.derived import DerivedTensors
from posexport.precision.linear import Projection, projections, quantizable
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
    every = projections(model, interface)
    chosen = quantizable(every, options.keep_float)
    tables = embeddings.lookups(model, interface, options.keep_float)
    # a table or weight that is read in float32 too would be stored twice
    readers = {each.product for each in chosen} | {each.node for each in tables}
    shared = {value for value in _weights(chosen, tables) if not _read_only_by(value, readers)}
    chosen = [each for each in chosen if each.weight.value not in shared]
    tables = [each for each in tables if each.table.value not in shared]
    tied = {each.table.value for each in tables}
    tensors = DerivedTensors(model)
    ranges = {} if calibration is None else measure(model, chosen, calibration)
    products = Products(model, tensors, target, tied, static_scales(ranges, chosen, tied))
    for projection in chosen:
        products.replace(projection)
    products.import_operators()
    for lookup in tables:
        embeddings.quantize(lookup, tensors)
    tensors.finish()
    static = sum(each.x in ranges for each in chosen)
    return _classes(len(chosen), len(every) - len(chosen), len(tables), static)


def _check_kernel(target: Target) -> None:
    provider = target.provider
    if provider is None or provider.has_kernel("MatMulIntegerToFloat", MICROSOFT, MICROSOFT_OPSET, _UINT8):
        return
    raise PosexportError(
        f"--precision int8 multiplies uint8 rows by int8 weights, for which ONNX Runtime has no kernel on "
        f"{provider.label}; use --precision fp16, or --precision int8 --weight-only"
    )


def _weights(chosen: list[Projection], tables: list[embeddings.Lookup]) -> set[ir.Value]:
    return {each.weight.value for each in chosen} | {each.table.value for each in tables}


def _read_only_by(value: ir.Value, readers: set[ir.Node]) -> bool:
    """Whether all that reads it is quantised, a transposition in between left aside."""
    for user, _ in value.uses():
        if user in readers:
            continue
        if user.op_type != "Transpose" or not all(last in readers for last, _ in user.outputs[0].uses()):
            return False
    return not value.is_graph_output()


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
