"""What values are computed from and lead to, through functions, branches and loops; parts of a graph run alone."""

import numpy as np
import onnx_ir as ir

from posexport.graph.dataflow import content_values, dependents, inputs, passed_values, sources
from posexport.graph.partial import Subgraph

GRAPH = """<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
main (int64[N] ids, int64[N] positions, bool choice) => (int64[N] chosen, int64[N] last, int64[N] all, int64[1] size) {
    size = Shape (ids)
    both = local.First (ids, positions)
    other = local.First (positions, ids)
    chosen = If (choice) <
        then_branch = then () => (int64[N] left) { left = Identity (both) },
        else_branch = else () => (int64[N] right) { right = Identity (positions) }
    >
    last, all = Scan <num_scan_inputs = 1, body = turn (int64[N] before, int64 id) => (int64[N] after, int64[N] was) {
        was = Identity (before)
        after = Add (before, id)
    }> (positions, ids)
}
<opset_import: ["" : 18], domain: "local">
First (one, two) => (first) {
    first = Neg (one)
    second = Neg (two)
}
"""


def values(model: ir.Model) -> dict[str, ir.Value]:
    made = [value for node in model.graph.all_nodes() for value in node.outputs]
    return {value.name: value for graph in (model.graph, *model.graph.subgraphs()) for value in (*graph.inputs, *made)}


def names(several: set[ir.Value]) -> set[str]:
    return {value.name for value in several}


def test_content_goes_through_functions_branches_and_loops() -> None:
    model = ir.from_onnx_text(GRAPH)
    held = names(content_values(model, {"ids": "tokens", "positions": "positions", "choice": "mask"}))
    # a function's inner values count where any call gives them content
    assert {"one", "first", "two", "second", "both"} <= held
    assert {"left", "chosen"} <= held
    # a state that holds no token at first does after an iteration, and so does what the body makes of it
    assert {"before", "after", "was", "last", "all"} <= held
    assert not {"positions", "choice", "right", "size"} & held


def test_dependents_enter_functions_only_where_asked() -> None:
    model = ir.from_onnx_text(GRAPH)
    one = dependents(model.graph, [values(model)["positions"]], breaks=())
    assert {"both", "other", "right", "chosen", "before", "all"} <= names(one)
    assert not {"one", "first", "size", "id"} & names(one)


def test_sources_of_a_branch_are_its_values_and_its_condition() -> None:
    model = ir.from_onnx_text(GRAPH)
    at = values(model)
    assert names(inputs(at["chosen"])) == {"ids", "positions", "choice"}
    assert names(inputs(at["chosen"], stops={at["both"]})) == {"both", "positions", "choice"}
    assert names(inputs(at["size"])) == set()
    assert names(inputs(at["size"], breaks=())) == {"ids"}


def test_sources_of_a_loop_are_its_states_and_what_it_scans() -> None:
    model = ir.from_onnx_text(GRAPH)
    at = values(model)
    assert names(set(sources(at["all"]))) == {"all", "was", "before", "after", "id", "ids", "positions"}
    # from inside a body, with what enters it and without
    assert names(set(sources(at["was"]))) == {"was", "before"}
    passed = passed_values(model.graph.all_nodes())
    assert names(set(sources(at["was"], passed=passed))) == {"was", "before", "after", "id", "ids", "positions"}


PARTS = """<ir_version: 9, opset_import: ["" : 18, "posexport" : 1]>
main (float[N] x, int64[N] ids) => (float[N] z) <float two = {2}, float[N] y> {
    y = Mul (x, two)
    z = posexport.Unknown (y)
    shape = Shape (ids)
    range = ConstantOfShape (shape)
    w = Add (y, range)
    v = Gather (x, ids)
}
"""


def test_a_part_runs_from_inputs_or_from_what_is_free() -> None:
    model = ir.from_onnx_text(PARTS)
    at = values(model)
    part = Subgraph(model, [at["w"]], [at["y"]])
    assert part.is_standard
    assert not part.reads_inputs
    assert part.run({at["y"]: np.ones(3, np.float32)}, {"N": 3})[0].tolist() == [1, 1, 1]
    assert part.run({at["y"]: np.ones(3, np.float32)}, {"N": 4}) is None  # ONNX Runtime fails
    whole = Subgraph(model, [at["y"], at["v"]])
    assert whole.reads_inputs
    (result,) = whole.for_samples([{"x": np.array([1, 2], np.float32), "ids": np.array([1, 0])}])
    assert [each.tolist() for each in result] == [[2, 4], [2, 1]]
    assert not Subgraph(model, [at["z"]]).is_standard
