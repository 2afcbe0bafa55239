"""What onnxscript's rules leave out of a graph changes no value."""

import onnx_ir as ir
import pytest
from onnxscript.rewriter.rules.common import _no_op

from posexport.sources.torch_fixes.exact_constants import with_exact_constants


def left(operator: str, number: float) -> list[str]:
    """The operators that onnxscript's rules leave of x operator number."""
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 18]> g (float[n] x) => (float[n] y)'
        f"<float c = {{{number:.20f}}}> {{ y = {operator}(x, c) }}"
    )
    _no_op.rules.apply_to_model(model)
    return [node.op_type for node in model.graph]


def test_onnxscript_leaves_out_small_numbers() -> None:
    """The day this fails, the file goes."""
    assert left("Add", 1e-15) == ["Identity"]


@pytest.mark.parametrize(("operator", "neutral", "other"), [("Add", 0, 1e-15), ("Mul", 1, 1.000001)])
def test_other_numbers_stay(operator: str, neutral: float, other: float) -> None:
    with with_exact_constants():
        assert left(operator, other) == [operator]
        assert left(operator, neutral) == ["Identity"]
