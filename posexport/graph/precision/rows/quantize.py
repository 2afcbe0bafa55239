"""The pass: linear projections and word embeddings of a float32 graph in int8, by rows of activations.

A projection becomes the product of integers, its channel's scale, its row's scale, the bias, in this order. The row's
scale times the channel's scale first would be two operators instead of three, and ONNX Runtime 1.31 and 1.32 fuse
MatMulInteger, Cast and Mul of this product of scales into MatMulIntegerToFloat, which has one scale for all rows, and
return wrong values without an error (cosine 0.63).
"""

from collections.abc import Container, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.spec import Interface
from posexport.base.targets.dtypes import BY_PRECISION, DType
from posexport.base.targets.precisions import PrecisionOptions
from posexport.base.targets.target import MICROSOFT, MICROSOFT_OPSET, Target
from posexport.errors import PosexportError
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.passes.recognise.encoder_states import values_of_states
from posexport.graph.precision.calibration import Calibration, Smoother
from posexport.graph.precision.derived import DerivedTensors, import_microsoft
from posexport.graph.precision.projections import Projection
from posexport.graph.precision.rows.activation_scales import PLAIN, RowScale, StaticScale, row_scales, static_scales
from posexport.graph.precision.rows.activations import ROW_NODES, Activations, Rows
from posexport.graph.precision.rows.weights import by_channel, by_row, quantize_lookup
from posexport.graph.precision.selection import Chosen, PrecisionResult, Replacement, choose

FLOAT, INT8, INT32 = ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.INT32


def replacement(target: Target, *, static: bool) -> Replacement:
    """The nodes and tensors that replace a projection; ``static``: activations have static scales."""
    nodes = 1 if target.microsoft else 3
    tensors = lambda projection: by_channel(projection.weight)  # noqa: E731 (a def would take five lines)
    return Replacement(tensors, nodes - 1 if static and target.microsoft else nodes, 1 if static else ROW_NODES)


class Products:
    """Replaces the projections of one model."""

    def __init__(
        self,
        tensors: DerivedTensors,
        target: Target,
        tied: set[ir.Value],
        smoother: Smoother,
        scales: Mapping[ir.Value, StaticScale | RowScale],
        emptied: Container[ir.Value],
    ) -> None:
        """Of one model.

        Args:
            tensors: what the products are given.
            target: where the graph runs.
            tied: weights that are word embeddings as well, read row by row.
            smoother: of channels.
            scales: of projections' inputs.
            emptied: values that may have no rows.
        """
        self._scales = scales
        self._tensors = tensors
        self._target = target
        self._tied = tied
        self._activations = Activations(tensors, target, smoother, emptied)

    def replace(self, projection: Projection) -> None:
        """Replaces a float projection by a product of integers."""
        product, shape = projection.product, projection.output.shape
        x = product.inputs[0]
        assert x is not None
        scale_x = self._scales.get(projection.x, PLAIN)
        if isinstance(scale_x, StaticScale):
            self._replace_static(projection, x, scale_x)
            return
        rows = self._activations.rows(x, product, projection.weight.sizes[0], scale_x)
        g = self._builder(projection)
        weight, scale = self._weight(projection, g, scale_x.smoothing)
        y = self._scaled_by_channel(projection, g, rows, weight, scale)
        y = g.Mul(y, rows.scale, name="by_row", shape=shape)
        if projection.bias is not None:
            y = g.Add(y, _unfused(g, projection, projection.bias), name="biased", shape=shape)
        replace(projection.output, y)
        projection.container.remove(projection.nodes, safe=True)

    def _replace_static(self, projection: Projection, x: ir.Value, scale: StaticScale) -> None:
        """With one scale for all rows, which the product multiplies by together with the channel's, before the bias."""
        shape, bias = projection.output.shape, projection.bias
        quantized = self._activations.static(x, scale)
        g = self._builder(projection)
        weight, channel = self._weight(projection, g, scale.smoothing)
        if self._target.microsoft:
            inputs: list[ir.Value | None] = [quantized.quantized, weight, quantized.scale, channel, quantized.zero]
            inputs += [] if bias is None else [None, bias]
            y = g.op("MatMulIntegerToFloat", *inputs, name="static", shape=shape, domain=MICROSOFT)
        else:
            count = g.MatMulInteger(quantized.quantized, weight, quantized.zero, name="count", shape=shape)
            y = g.Cast(count, name="real", shape=shape, to=int(FLOAT))
            y = g.Mul(y, channel, name="by_channel", shape=shape)
            y = g.Mul(y, quantized.scale, name="by_scale", shape=shape)
            y = y if bias is None else g.Add(y, bias, name="biased", shape=shape)
        replace(projection.output, y)
        projection.container.remove(projection.nodes, safe=True)

    def _builder(self, projection: Projection) -> Builder:
        name, nodes = projection.output.name or "linear", projection.nodes
        return Builder.at(nodes[0], like=nodes, name=name, opset=self._tensors.opset)

    def _weight(self, projection: Projection, g: Builder, smoothing: NDArray[np.float32] | None) -> list[ir.Value]:
        """int8 [K, N] and its scales, [N] or what reads so."""
        weight = projection.weight
        if weight.value not in self._tied:
            return self._tensors.put(weight, projection.container, by_channel(weight, smoothing))
        # stored once, as the embeddings read it; runtimes transpose constants when a session starts
        stored, scale = self._tensors.put(weight, projection.container, by_row(weight))
        flat = self._tensors.number(projection.container, "flat", np.array([-1]))
        return [
            g.Transpose(stored, name="weight", shape=ir.Shape(weight.sizes)),
            g.Reshape(scale, flat, name="weight_scale", shape=ir.Shape([weight.sizes[1]])),
        ]

    def _scaled_by_channel(
        self, projection: Projection, g: Builder, rows: Rows, weight: ir.Value, scale: ir.Value
    ) -> ir.Value:
        """The product in float32, [..., N], which only the row's scale is missing from."""
        container, shape = projection.container, projection.output.shape
        if self._target.microsoft:
            one = self._tensors.number(container, "one", np.float32(1))
            inputs = [rows.quantized, weight, one, scale, rows.zero]
            return g.op("MatMulIntegerToFloat", *inputs, name="by_channel", shape=shape, domain=MICROSOFT)
        count = g.MatMulInteger(rows.quantized, weight, rows.zero, name="count", shape=shape)
        real = g.Cast(count, name="real", shape=shape, to=int(FLOAT))
        return g.Mul(real, scale, name="by_channel", shape=shape)


def _unfused(g: Builder, projection: Projection, bias: ir.Value) -> ir.Value:
    """The bias as [1, N] before a Gelu: of one axis ONNX Runtime makes BiasGelu, which is slower than Add and Gelu.

    Measured with 1.31.1 on AVX-512, 512 rows of 3072: 1.19 ms and 1.00 ms; two layers of BERT-base in 0.94 to
    0.98 of the time.
    """
    readers = (user for user, _ in projection.output.uses())
    return g.Unsqueeze(bias, [0], name="bias") if any(user.op_type == "Gelu" for user in readers) else bias


_UINT8 = DType(name="uint8", onnx="UINT8", ort="uint8", safetensors="U8")


def quantize_rows(
    model: ir.Model,
    interface: Interface,
    target: Target,
    options: PrecisionOptions,
    calibration: Calibration | None = None,
) -> PrecisionResult:
    """Quantizes ``model`` in place; returns how each class of tensors is stored.

    ``calibration``: inputs on which static scales are measured, if ``options`` ask for them; else those by which zero
    points and smoothing of rows are chosen (without it: 128, and no smoothing).

    After all graph passes, which know float projections. Normalisations, attention and positions stay in float32.

    Raises:
        PosexportError: the provider has no kernel for products of uint8 and int8.
    """
    _check_kernel(target)
    chosen = choose(model, interface, options, lambda _: replacement(target, static=options.static))
    scales = _scales(model, chosen, options, calibration)
    tensors = DerivedTensors(model)
    smoother, emptied = Smoother(tensors, chosen.projections), set(values_of_states(model, interface.inputs))
    products = Products(tensors, target, chosen.tied, smoother, scales, emptied)
    for projection in chosen.projections:
        products.replace(projection)
    import_microsoft(model)
    for lookup in chosen.tables:
        quantize_lookup(lookup, tensors)
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
    half = "--precision fp16, or " if provider.computes(BY_PRECISION["fp16"]) else ""
    raise PosexportError(
        f"--precision int8 multiplies uint8 rows by int8 weights, for which ONNX Runtime has no kernel on "
        f"{provider.label}; use {half}--precision int8 --weight-only"
    )


def _classes(chosen: Chosen, scales: Mapping[ir.Value, StaticScale | RowScale]) -> dict[str, str]:
    stored = {}
    if chosen.projections:
        stored["linear weights"] = "int8 with a scale for each channel"
        of_each = [scales.get(projection.x) for projection in chosen.projections]
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
