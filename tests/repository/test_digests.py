"""ci/digests tells apart what computes something else, and nothing that is called otherwise."""

from collections.abc import Callable

import onnx
import pytest
from onnx import FunctionProto, GraphProto, ModelProto, helper, numpy_helper, parser

from ci.digests.text import text
from posexport.graph.merkle import counts, digest

MODEL = """
<ir_version: 10, opset_import: ["": 18, "here": 1]>
main (float[N, 4] x) => (float[N, 4] y)
<float[4] weight = {1.0, 2.0, 3.0, 4.0}, float[1] dead = {7.0}>
{
    scaled = here.scale <by = 2.0> (x, weight)
    other = here.scale <by = 3.0> (x, weight)
    joined = Add (scaled, other)
    yes = Constant <value = bool {1}> ()
    y = If (yes) <
        then_branch = then_graph () => (float[N, 4] chosen) { chosen = Sub (joined, weight) },
        else_branch = else_graph () => (float[N, 4] left) { left = Identity (joined) }
    >
}
<domain: "here", opset_import: ["": 18]>
scale <by> (a, b) => (c)
{
    factor = Constant <value_float: float = @by> ()
    product = Mul (a, b)
    c = Mul (product, factor)
}
"""


def model() -> ModelProto:
    made: ModelProto = parser.parse_model(MODEL)
    return made


def attribute(made: ModelProto) -> None:
    made.graph.node[0].attribute[0].f = 2.5


def bit(made: ModelProto) -> None:
    weight = numpy_helper.to_array(made.graph.initializer[0]).copy()
    weight.view("int32")[2] ^= 1
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "weight"))


def edge(made: ModelProto) -> None:
    made.graph.node[2].input[1] = "scaled"


def order_of_inputs(made: ModelProto) -> None:
    made.graph.node[0].input[:] = ["weight", "x"]


def body(made: ModelProto) -> None:
    made.functions[0].node[1].op_type = "Div"


def branch(made: ModelProto) -> None:
    made.graph.node[4].attribute[0].g.node[0].op_type = "Add"


def dead_node(made: ModelProto) -> None:
    made.graph.node.append(helper.make_node("Neg", ["x"], ["unread"]))


def dead_initializer(made: ModelProto) -> None:
    del made.graph.initializer[1]


def output_name(made: ModelProto) -> None:
    made.graph.output[0].name = made.graph.node[4].output[0] = "z"


def axis_name(made: ModelProto) -> None:
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "M"


def opset(made: ModelProto) -> None:
    made.opset_import[0].version = 19


CHANGES = [
    *(attribute, bit, edge, order_of_inputs, body, branch, dead_node, dead_initializer, output_name, axis_name, opset)
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_computes_something_else_has_another_digest(change: Callable[[ModelProto], None]) -> None:
    changed = model()
    change(changed)
    assert digest(changed) != digest(model())
    assert text(changed) != text(model())


def renamed(made: ModelProto) -> None:
    """Every value but the graph's inputs and outputs, every node, graph and function."""

    def new(name: str) -> str:
        return name if name in ("x", "y", "") else f"{name}_1"

    def rename(part: GraphProto | FunctionProto) -> None:
        for index, node in enumerate(part.node):
            node.name, node.doc_string = f"node {index}", "what it does"
            node.input[:], node.output[:] = map(new, node.input), map(new, node.output)
            if node.domain == "here":
                node.op_type = "times"
            for each in node.attribute:
                if each.HasField("g"):
                    rename(each.g)
        if isinstance(part, GraphProto):
            part.name = "another"
            for value in [*part.input, *part.output, *part.initializer]:
                value.name = new(value.name)

    rename(made.graph)
    for function in made.functions:
        function.name = "times"
        function.input[:], function.output[:] = map(new, function.input), map(new, function.output)
        rename(function)


def other_order(made: ModelProto) -> None:
    nodes = [made.graph.node[index] for index in (3, 1, 0, 2, 4)]
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(copied)


def documented(made: ModelProto) -> None:
    made.doc_string, made.producer_name = "said", "someone"
    helper.set_model_props(made, {"posexport": "{}"})


@pytest.mark.parametrize("change", [renamed, other_order, documented])
def test_names_order_and_documentation_do_not_count(change: Callable[[ModelProto], None]) -> None:
    changed = model()
    change(changed)
    onnx.checker.check_model(changed)
    assert digest(changed) == digest(model())
    assert text(changed) == text(model())


def test_a_change_shows_in_the_lines_around_it() -> None:
    """And not in all that depend on it."""
    changed = model()
    branch(changed)
    before, after = (set(text(each).splitlines()) for each in (model(), changed))
    assert len(after - before) == 2
    assert any("Add(" in line for line in after - before)


def test_bodies_are_counted_at_every_call() -> None:
    assert counts(model()) == {"Mul": 4, "Constant": 3, "Add": 1, "If": 1, "Sub": 1, "Identity": 1}
