"""PX403: products of uint8 activations and int8 weights that saturate on processors without VNNI."""

from collections.abc import Iterator

import onnx_ir as ir

from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject

#: operator -> inputs with activations and weights
_PRODUCTS = {
    ("", "MatMulInteger"): (0, 1),
    ("", "ConvInteger"): (0, 1),
    ("", "QLinearMatMul"): (0, 3),
    ("", "QLinearConv"): (0, 3),
    ("com.microsoft", "QGemm"): (0, 3),
    ("com.microsoft", "MatMulIntegerToFloat"): (0, 1),
    ("com.microsoft", "QAttention"): (0, 1),
    # these quantize their activations to uint8 themselves
    ("com.microsoft", "DynamicQuantizeMatMul"): (None, 1),
    ("com.microsoft", "DynamicQuantizeLSTM"): (None, 1),
}
#: two products of 255 and 64 fit in a signed sum of 16 bits; two of 255 and 65 do not
_SAFE = 64


def _check(subject: Subject) -> Iterator[Place]:
    if subject.provider != "cpu":
        return
    signed = [(node, weight) for node in subject.nodes if (weight := _signed_weight(node)) is not None]
    for node, weight in signed:
        if (largest := _largest(weight)) > _SAFE:
            if subject.bundle is not None:
                return  # posexport.load sets the option that the remedy names, where the processor needs it
            yield Place(
                f"{len(signed)} products of uint8 activations with int8 weights, which reach {largest} in "
                f"{weight.name!r}: two of them exceed the 16-bit sums of AVX2 and AVX-512 without VNNI",
                [node, *(other for other, _ in signed if other is not node)],
                # a bundle's graph without its manifest: its client has to set the option
                severity="note" if subject.by_posexport else None,
            )
            return


def _signed_weight(node: ir.Node) -> ir.Value | None:
    """The int8 weight of a product with uint8 activations."""
    places = _PRODUCTS.get((node.domain, node.op_type))
    if places is None or len(node.inputs) <= places[1]:
        return None
    activations = None if places[0] is None else node.inputs[places[0]]
    weight = node.inputs[places[1]]
    if weight is None or weight.dtype != ir.DataType.INT8 or ir.convenience.get_const_tensor(weight) is None:
        return None
    unsigned = places[0] is None or (activations is not None and activations.dtype == ir.DataType.UINT8)
    return weight if unsigned else None


def _largest(weight: ir.Value) -> int:
    """The largest absolute value of a weight, read from disk without a copy."""
    tensor = ir.convenience.get_const_tensor(weight)
    if tensor is None or not tensor.size:
        return 0
    array = tensor.numpy()
    return max(int(array.max()), -int(array.min()))


RULE = Rule(
    code="PX403",
    name="saturating-int8",
    severity="warning",
    finds="products of uint8 activations and int8 weights above 64",
    why="On x86 processors without VNNI (before 2019 or so) ONNX Runtime adds two such products in 16 "
    "bits, which saturate: other outputs than on the machine where the file was tested.",
    remedy="Set the session option session.x64quantprecision to 1 (posexport.load does on these processors), or "
    "quantize again with reduce_range=True (weights of 7 bits) or uint8 weights (weight_type=QuantType.QUInt8).",
    check=_check,
    bad="""
        <ir_version: 8, opset_import: ["": 18]>
        signed (uint8[B, 2] x) => (int32[B, 2] y)
        <int8[2, 2] weight = {127, -3, 120, 5}>
        { y = MatMulInteger (x, weight) }
    """,
    good="""
        <ir_version: 8, opset_import: ["": 18]>
        reduced (uint8[B, 2] x) => (int32[B, 2] y)
        <int8[2, 2] weight = {63, -3, 60, 5}>
        { y = MatMulInteger (x, weight) }
    """,
)
