"""Operators of PyTorch that the exporter has no translation of."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="No ONNX function found for <OpOverload(op='aten.linalg_inv_ex', overload='default')>",
    pattern=r"(?:No ONNX function found for <OpOverload\(op='|UnsupportedOperatorException: )([\w.]+\w)",
    meaning="uses {0}, which PyTorch's exporter has no ONNX operators for",
    remedy="write it in other operations, or compute it in __init__ where it depends on weights alone",
    threads=(),
)
