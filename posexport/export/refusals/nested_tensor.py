"""Nested tensors made by the module itself; those of `nn.TransformerEncoder` are switched off."""

from posexport.export.refusals.refusal import Refusal

REFUSAL = Refusal(
    says="UnsupportedOperatorException: aten._nested_tensor_from_tensor_list.default",
    pattern=r"aten\.?:*_?\w*nested_tensor|NestedTensor",
    meaning="makes a nested tensor, which ONNX has not",
    remedy="keep rows padded to one length and mask what is padded",
    threads=("pytorch/pytorch 156681",),
)
