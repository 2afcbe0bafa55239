"""The same graph without functions, for runtimes that know none (OpenVINO and others)."""

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from posexport.ops.base import DOMAIN


def inline(model: ir.Model) -> None:
    """Replace every call of a function by its body, in place, and forget our domain."""
    InlinePass()(model)
    model.opset_imports.pop(DOMAIN, None)
