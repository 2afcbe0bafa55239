"""The pass: weights of linear projections in blocks of 4 or 8 bits; word embeddings have 8, logits by default too.

A projection becomes MatMulNBits, or for any runtime DequantizeLinear and MatMul. Word embeddings that are tied to the
head are rows of its blocks, so that both are stored once.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from posexport.base.spec import Interface
from posexport.base.targets.precisions import STORED, PrecisionOptions
from posexport.base.targets.target import BLOCKED_OPSET, MICROSOFT, Target
from posexport.errors import PosexportError
from posexport.graph.builder import Builder
from posexport.graph.edits import replace
from posexport.graph.precision.blocks.packing import Scheme, for_codes, for_dequantize, for_product
from posexport.graph.precision.blocks.rounding import factors
from posexport.graph.precision.blocks.stored_rows import ORDER, StoredRows
from posexport.graph.precision.calibration import Calibration
from posexport.graph.precision.derived import Derived, DerivedTensors, import_microsoft
from posexport.graph.precision.projections import Projection, Weight
from posexport.graph.precision.rows.weights import Lookup, quantize_lookup
from posexport.graph.precision.selection import Chosen, PrecisionResult, Replacement, choose

FLOAT = ir.DataType.FLOAT
OPERATOR = "MatMulNBits"
#: for weights of NF4, and what its attribute quant_type says of them
CODES_OPERATOR, NF4 = "MatMulBnb4", 1


def replacement(target: Target, scheme_of: Callable[[Projection], Scheme]) -> Replacement:
    """The nodes and tensors that replace a projection."""

    def of_codes(projection: Projection) -> bool:
        rows = scheme_of(projection).rows
        return rows is not None and rows.codes is not None

    def fused(projection: Projection) -> Mapping[str, Derived]:
        tensors = for_codes if of_codes(projection) else for_product
        return tensors(projection.weight, scheme_of(projection))

    if target.may_use(OPERATOR):
        return Replacement(fused, nodes=0)
    return Replacement(lambda projection: for_dequantize(projection.weight, scheme_of(projection)), nodes=1)


class Products:
    """Replaces the projections of one model."""

    def __init__(self, model: ir.Model, tensors: DerivedTensors, target: Target) -> None:
        self._main = model.graph
        self._tensors = tensors
        self._fused = target.may_use(OPERATOR)
        # clients that have the operator without being a target are browsers: their kernels are of int8 too
        self._level = 4 if target.provider is None else target.provider.accuracy_level

    def replace(self, projection: Projection, scheme: Scheme) -> None:
        """Replaces a projection by one with a weight in blocks; the bias is added as before."""
        shape = projection.output.shape
        name = projection.output.name or "linear"
        g = Builder.at(projection.nodes[0], like=projection.nodes, name=name, opset=self._tensors.opset)
        y = self._fused_product(projection, scheme, g) if self._fused else self._product(projection, scheme, g)
        if projection.bias is not None:
            y = g.Add(y, projection.bias, name="biased", shape=shape)
        elif not self._fused:
            self._as_maximum(projection)
        replace(projection.output, y)
        projection.container.remove(projection.nodes, safe=True)

    def _as_maximum(self, projection: Projection) -> None:
        """Writes a Relu that reads the product as Max.

        ONNX Runtime 1.32 takes DequantizeLinear, MatMul and Relu for a part of a product of integers that is not there,
        and dequantizes the weight in every call.
        """
        for relu in [use.node for use in projection.output.uses() if use.node.op_type == "Relu"]:
            graph = relu.graph
            assert isinstance(graph, ir.Graph)
            value = relu.outputs[0]
            zero = self._tensors.number(graph, "zero", np.float32(0))
            g = Builder.at(relu, name=value.name or "relu", opset=self._tensors.opset)
            replace(value, g.Max(projection.output, zero, name="positive", shape=value.shape))
            graph.remove(relu, safe=True)

    def _fused_product(self, projection: Projection, scheme: Scheme, g: Builder) -> ir.Value:
        k, n = projection.weight.sizes
        if scheme.rows is not None and scheme.rows.codes is not None:
            return self._coded_product(projection, scheme, g)
        stored = self._tensors.put(projection.weight, projection.container, for_product(projection.weight, scheme))
        attributes = {"K": k, "N": n, "bits": scheme.bits, "block_size": scheme.size, "accuracy_level": self._level}
        inputs = [self._input(projection, scheme, g), *stored]
        return g.op(OPERATOR, *inputs, name="product", shape=projection.output.shape, domain=MICROSOFT, **attributes)

    def _coded_product(self, projection: Projection, scheme: Scheme, g: Builder) -> ir.Value:
        k, n = projection.weight.sizes
        stored = self._tensors.put(projection.weight, projection.container, for_codes(projection.weight, scheme))
        attributes = {"K": k, "N": n, "block_size": scheme.size, "quant_type": NF4}
        inputs = [self._input(projection, scheme, g), *stored]
        shape = projection.output.shape
        return g.op(CODES_OPERATOR, *inputs, name="product", shape=shape, domain=MICROSOFT, **attributes)

    def _input(self, projection: Projection, scheme: Scheme, g: Builder) -> ir.Value:
        """What the product multiplies, its channels in the order of the weight's blocks."""
        x, weight = projection.product.inputs[0], projection.weight
        assert x is not None
        order = scheme.order(weight)
        if order is None:
            return x
        indices = self._tensors.number(projection.container, f"{weight.name}_{ORDER}", order)
        return g.Gather(x, indices, name="by_blocks", axis=-1, shape=x.shape)

    def _product(self, projection: Projection, scheme: Scheme, g: Builder) -> ir.Value:
        weight, x = projection.weight, self._input(projection, scheme, g)
        stored = self._tensors.put(weight, projection.container, for_dequantize(weight, scheme))
        calls = weight.calls
        main = projection.container is self._main or (calls and all(call.graph is self._main for call in calls))
        # ONNX Runtime makes MatMulNBits of it by axis 0, and fails to load where the weight is not of the same graph
        attributes = {"axis": 0 if main else -2, "block_size": scheme.size}
        real = g.DequantizeLinear(*stored, name="weight", shape=ir.Shape(weight.sizes), **attributes)
        if not _becomes_gemm(projection):
            return g.MatMul(x, real, name="product", shape=projection.output.shape)
        y = g.MatMul(g.Unsqueeze(x, [0], name="row"), real, name="product")
        return g.Squeeze(y, [0], name="rows", shape=projection.output.shape)


def _becomes_gemm(projection: Projection) -> bool:
    """Whether ONNX Runtime would make Gemm of the product and an Add: then it dequantizes the weight in every call.

    That is of matrices [N, K] with a sum that is no constant bias, such as of experts.
    """
    shape = projection.output.shape
    is_summed = any(use.node.op_type == "Add" for use in projection.output.uses())
    return projection.bias is None and is_summed and shape is not None and len(shape) == 2


def quantize_tied(lookup: Lookup, tensors: DerivedTensors, scheme: Scheme, *, fused: bool, compiled: bool) -> None:
    """Looks rows up in the head's weight; ``fused``: as MatMulNBits reads it, else as DequantizeLinear does.

    ``compiled``: for a provider that dequantizes weights of constant sizes only, when it compiles the graph.

    A row [K] is (whole [blocks, size] - 128) * scale [blocks, 1] without what fills the last block up.
    """
    node = lookup.node
    graph, ids, output = node.graph, node.inputs[1], node.outputs[0]
    assert isinstance(graph, ir.Graph)
    assert ids is not None
    k = lookup.table.sizes[0]
    g = Builder.at(node, name=output.name or "embedding", opset=tensors.opset)

    def integers(name: str, *values: int) -> ir.Value:
        return tensors.number(graph, name, np.array(values, np.int64))

    rank = len(ids.shape or ())
    if fused:
        whole, scale = tensors.put(lookup.table, graph, for_product(lookup.table, scheme))
        whole = g.Gather(whole, ids, name="uint8", axis=0)
        scale = g.Gather(scale, ids, name="scale", axis=0)
        scale = g.Unsqueeze(scale, integers("last_axis", -1), name="scales")
        middle = tensors.number(graph, "middle_of_uint8", np.float32(1 << (scheme.bits - 1)))
        real = g.Cast(whole, name="real", to=int(FLOAT))
        real = g.Mul(g.Sub(real, middle, name="signed"), scale, name="blocks")
        flat = integers(f"rows_flat_{rank}", *[0] * rank, -1)
        real = g.Reshape(real, flat, name="flat")
        if k % scheme.size:
            bounds = [integers("first", 0), integers(f"end_{k}", k), integers("last_axis", -1)]
            real = g.Slice(real, *bounds, name="row")
    else:
        # columns of [K, N], as the product reads it best
        whole, scale = tensors.put(lookup.table, graph, for_dequantize(lookup.table, scheme))
        if compiled:
            real = g.DequantizeLinear(whole, scale, name="table", axis=0, block_size=scheme.size)
            real = g.Gather(real, ids, name="real", axis=1)
        else:
            whole = g.Gather(whole, ids, name="int8", axis=1)
            scale = g.Gather(scale, ids, name="scale", axis=1)
            real = g.DequantizeLinear(whole, scale, name="real", axis=0, block_size=scheme.size)
        real = g.Transpose(real, name="row", perm=[*range(1, rank + 1), 0])
    real.shape = output.shape
    replace(output, real)
    graph.remove(node, safe=True)


def _check_blocks(projections: Sequence[Projection], target: Target, options: PrecisionOptions) -> None:
    """Raises PosexportError for a weight that the provider cannot read because its last block is not full."""
    provider = target.provider
    if provider is None or not target.whole_blocks:
        return
    for projection in projections:
        k = projection.weight.sizes[0]
        if k % options.block_size:
            name = next(iter(projection.weight.names), projection.weight.value.name)
            raise PosexportError(
                f"{provider.label} reads weights in whole blocks of {options.block_size}, and {name} has {k} "
                f"rows: keep it in float with --keep-float {name!r}, or use another --target"
            )


def _no_codes(target: Target) -> str | None:
    """Why a graph for ``target`` cannot have weights of NF4."""
    if not target.may_use(CODES_OPERATOR):
        return target.needs_microsoft(CODES_OPERATOR) or f"{target.name} has no such operator; use --target cpu"
    lacks = target.needs_kernel(CODES_OPERATOR, MICROSOFT)
    return None if lacks is None else f"{lacks}; use --precision int4"


def _check_target(target: Target, options: PrecisionOptions, rows: StoredRows | None) -> None:
    if not target.may_use(OPERATOR) and target.opset < BLOCKED_OPSET:
        raise PosexportError(
            f"--precision {options.precision} for any runtime stores weights in blocks, which need --opset "
            f"{BLOCKED_OPSET} or higher; got {target.opset}"
        )
    if rows is not None and rows.codes is not None and (reason := _no_codes(target)):
        raise PosexportError(
            f"the checkpoint's weights are NF4, kept by {CODES_OPERATOR} in --precision {options.precision}: {reason}, "
            "or --quantizer hqq to round them again"
        )


def quantize_blocks(
    model: ir.Model,
    interface: Interface,
    target: Target,
    options: PrecisionOptions,
    calibration: Calibration | None = None,
    rows: StoredRows | None = None,
) -> PrecisionResult:
    """Quantizes ``model`` in place; returns how each class of tensors is stored.

    ``calibration``: texts, for the quantizer that rounds by what weights are multiplied by. ``rows``: of weights that
    are kept as they are in a checkpoint; other weights stay in float then, but for the head and word embeddings.

    After all graph passes and before a pass to half precision, which finds float scales and float activations.

    Raises:
        PosexportError: the opset has no blocks.
    """
    bits = options.weight_bits or 8
    rows = rows if options.quantizer == STORED else None
    _check_target(target, options, rows)
    linear = Scheme(bits, options.block_size, options.quantizer, rows=rows)
    head = Scheme(options.head_bits, options.block_size)

    def replacement_of(logits: set[ir.Value]) -> Replacement:
        return replacement(target, lambda projection: head if projection.weight.value in logits else linear)

    def fits(weight: Weight) -> bool:
        return rows is None or rows.has(weight.array())

    # the weights, and for GPTQ the second moments of the activations that they multiply
    chosen = choose(model, interface, options, replacement_of, fits)
    _check_blocks(chosen.projections, target, options)
    tensors = DerivedTensors(model)
    products = Products(model, tensors, target)
    # embeddings are rows of a tied head of 8 bits; with a head of 4 bits they keep their 8
    tied = {projection.weight.value for projection in chosen.projections} & chosen.tied if head.bits == 8 else set()
    bodies = [projection for projection in chosen.projections if projection.weight.value not in chosen.logits]
    of_weights = {} if calibration is None else factors(model, bodies, calibration)
    # projections; those to logits have the bits of the head
    for projection in chosen.projections:
        scheme = dataclasses.replace(linear, factor=of_weights.get(projection.weight.value))
        products.replace(projection, head if projection.weight.value in chosen.logits else scheme)
    # word embeddings, which read the blocks of a tied head
    for lookup in chosen.tables:
        if lookup.table.value in tied:
            quantize_tied(lookup, tensors, head, fused=target.may_use(OPERATOR), compiled=target.whole_blocks)
        else:
            quantize_lookup(lookup, tensors)
    import_microsoft(model)
    tensors.finish()
    without = 0 if calibration is None else sum(body.weight.value not in of_weights for body in bodies)
    classes = _classes(chosen, linear, head, len(bodies), len(tied), without)
    return chosen.result(classes, bits, head.bits)


def _classes(chosen: Chosen, linear: Scheme, head: Scheme, bodies: int, tied: int, without: int) -> dict[str, str]:
    """``without``: projections in functions and branches, of unobserved inputs, which are rounded to nearest."""
    stored = {}
    blocks = f"in blocks of {linear.size}"
    if bodies:
        fallback = f", {without} of them rtn" if without else ""
        kind = "nf" if linear.rows is not None and linear.rows.codes is not None else "int"
        stored["linear weights"] = f"{kind}{linear.bits} {blocks}, {linear.quantizer}{fallback}"
    if len(chosen.projections) > bodies:
        stored["projections to logits"] = f"int{head.bits} {blocks}"
    if chosen.tables:
        scales = f"int8 {blocks}, stored once with the head" if tied else "int8 with a scale for each row"
        stored["word embeddings"] = scales
    return stored
