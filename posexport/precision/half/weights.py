"""Parameters in 16 bits: brought there when they are written, one at a time."""

import functools

import numpy as np
import onnx_ir as ir

from posexport.errors import PosexportError
from posexport.precision.half.casts import Casts, numpy_type

#: larger parameters are brought to 16 bits only when the file is written
_LAZY = 1 << 20


def convert(graph: ir.Graph, casts: Casts) -> None:
    """Every initialiser to the type that was decided for it.

    Raises:
        PosexportError: a parameter is beyond what float16 holds.
    """
    for value in graph.initializers.values():
        tensor = value.const_value
        if value not in casts.flow.info or tensor is None:
            continue
        if value not in casts.flow.half:
            if tensor.size <= 1:
                bounded = casts.sentinels(np.asarray(tensor.numpy(), np.float32))
                value.const_value = ir.Tensor(bounded.reshape(tensor.shape.numpy()), name=value.name)
            continue
        narrow = functools.partial(_narrow, value.name or "", tensor, casts)
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = (
            ir.LazyTensor(narrow, casts.dtype, shape, name=value.name) if tensor.nbytes > _LAZY else narrow()
        )
        value.type = ir.TensorType(casts.dtype)


def _narrow(name: str, tensor: "ir.TensorProtocol", casts: Casts) -> "ir.TensorProtocol":
    array = casts.sentinels(np.asarray(tensor.numpy(), np.float32))
    with np.errstate(over="ignore"):
        narrow = array.astype(numpy_type(casts.dtype))
    if not np.array_equal(np.isfinite(array), np.isfinite(narrow.astype(np.float32))):
        most = np.abs(array[np.isfinite(array)]).max()
        raise PosexportError(
            f"{name} holds {most:.6g}, and {casts.dtype.name.lower()} ends at {casts.flow.largest:.6g}; "
            "use --precision bf16"
        )
    return ir.Tensor(narrow, name=name)
