"""What tokens lead to, through functions, branches and loops (`posexport.graph.propagation`)."""

import onnx_ir as ir

from posexport.precision.content import content_values

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


def test_content_goes_through_functions_branches_and_loops() -> None:
    model = ir.from_onnx_text(GRAPH)
    held = content_values(model, {"ids": "tokens", "positions": "positions", "choice": "mask"})
    names = {value.name for value in held}
    # a function's inner values count where any call gives them content
    assert {"one", "first", "two", "second", "both"} <= names
    assert {"left", "chosen"} <= names
    # a state that holds no token at first does after a turn, and so does what the body makes of it
    assert {"before", "after", "was", "last", "all"} <= names
    assert not {"positions", "choice", "right", "size"} & names
