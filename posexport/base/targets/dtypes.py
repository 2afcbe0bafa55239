"""Element types of tensors, and what ONNX, ONNX Runtime and safetensors call each. Imports no NumPy and no torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, kw_only=True)
class DType:
    """One element type.

    Attributes:
        name: NumPy's and PyTorch's, which manifests record.
        onnx: its name in ``TensorProto.DataType``.
        ort: its name in ONNX Runtime's type strings, for example ``tensor(float)``.
        safetensors: its name in a safetensors header.
        in_bundles: a bundle's inputs may have it and, if it is a floating-point type, its weights and activations.
        precision: what reports and manifests call a model of it; empty for a type that no model is compared in.
        eps: the distance from 1 to the next larger value; 0 for integers and truth values.
    """

    name: str
    onnx: str
    ort: str
    safetensors: str
    in_bundles: bool = False
    precision: str = ""
    eps: float = 0.0

    @property
    def ort_type(self) -> str:
        """The type string that an ONNX Runtime session shows for a tensor of it."""
        return f"tensor({self.ort})"

    @property
    def torch(self) -> "torch.dtype":
        import torch

        dtype: torch.dtype = getattr(torch, self.name)
        return dtype

    @property
    def numpy(self) -> "np.dtype[Any]":
        """The NumPy type; from ml_dtypes if NumPy does not define it."""
        import numpy as np

        if self.name == "bfloat16":
            import ml_dtypes

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        dtype: np.dtype[Any] = np.dtype(self.name)
        return dtype


INT64 = DType(name="int64", onnx="INT64", ort="int64", safetensors="I64", in_bundles=True)
FLOAT32 = DType(
    name="float32", onnx="FLOAT", ort="float", safetensors="F32", in_bundles=True, precision="fp32", eps=2.0**-23
)
#: of the weights, activations and real-valued inputs of models
MODEL_DTYPE = FLOAT32
BFLOAT16 = DType(
    name="bfloat16",
    onnx="BFLOAT16",
    ort="bfloat16",
    safetensors="BF16",
    in_bundles=True,
    precision="bf16",
    eps=2.0**-7,
)
#: of a KV cache in 8 bits
INT8 = DType(name="int8", onnx="INT8", ort="int8", safetensors="I8", in_bundles=True)
DTYPES = (
    INT64,
    INT8,
    FLOAT32,
    DType(
        name="float16",
        onnx="FLOAT16",
        ort="float16",
        safetensors="F16",
        in_bundles=True,
        precision="fp16",
        eps=2.0**-10,
    ),
    BFLOAT16,
    DType(name="float64", onnx="DOUBLE", ort="double", safetensors="F64", eps=2.0**-52),
    DType(name="int32", onnx="INT32", ort="int32", safetensors="I32", in_bundles=True),
    DType(name="bool", onnx="BOOL", ort="bool", safetensors="BOOL", in_bundles=True),
)
#: floating-point types
FLOATS = tuple(dtype for dtype in DTYPES if dtype.eps)
BY_ORT_TYPE = {dtype.ort_type: dtype for dtype in DTYPES}
BY_NAME = {dtype.name: dtype for dtype in DTYPES}
#: the floating-point types that a model may be compared in, by what reports call it then
BY_PRECISION = {dtype.precision: dtype for dtype in FLOATS if dtype.precision}

if TYPE_CHECKING:  # mypy takes no computed Literal; msgspec validates by it
    PortType = str
else:
    #: the type of a bundle's input
    PortType = Literal[tuple(dtype.name for dtype in DTYPES if dtype.in_bundles)]
