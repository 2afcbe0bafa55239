"""Which nodes a batch without padding may run token by token, or row by row."""

import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from posexport.graph.passes.padding.between import Between
from posexport.graph.passes.token_regions import regions
from tests.text_graphs import graph

GRAPH = """HEAD g (float[B, T, 8] x, int64[1] last) => (float[N, 8] y) {{
    m = Mul (x, x)
    n = ReduceMean <keepdims = 1> (m{axes})
    z = Mul (m, n)
    flat = Constant <value = int64[2] {{-1, 8}}> ()
    y = Reshape (z, flat)
}}"""


@pytest.mark.parametrize(("axes", "operators"), [(", last", ["ReduceMean", "Mul"]), ("", [])])
def test_a_mean_over_all_axes_is_not_token_by_token(axes: str, operators: list[str]) -> None:
    model = ShapeInferencePass()(graph(GRAPH.format(axes=axes), last=ir.tensor([-1]).numpy())).model
    found = [node.op_type for region in regions(model.graph, ir.DataType.FLOAT) for node in region.nodes]
    assert found == operators


@pytest.mark.parametrize(
    ("shape", "reason"),
    [("B, T, 8", None), ("B, 1, T, 8", None), ("B, T, S", "what attention reads is reshaped to two axes of tokens")],
)
def test_rows_are_not_reshaped_to_two_axes_of_tokens(shape: str, reason: str | None) -> None:
    model = graph(f"""HEAD g (float[N, 8] x, int64[R] sizes, int64[2] flat) => (float[N, 8] y)
        <float[{shape}] split> {{ split = Reshape (x, sizes)  y = Reshape (split, flat) }}""")
    between = Between([*model.graph], ("B", "T"), ())
    assert between.refusal({model.graph.inputs[0]}) == reason
