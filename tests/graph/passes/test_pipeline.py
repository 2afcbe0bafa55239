"""The list of passes: each has its rule, phases stand in their order, and which ones the manifest has an entry of."""

import inspect
import re

import onnx.parser
import onnx_ir as ir
import pytest

from posexport.base.targets.target import Target
from posexport.graph.passes.graph_pass import Context, GraphPass
from posexport.graph.passes.pipeline import AFTER_LOWERING, BEFORE_LOWERING, PASSES, run


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.name)
def test_a_pass_has_its_rule_with_the_nodes_before_and_after(each: GraphPass) -> None:
    text = inspect.cleandoc(type(each).__doc__ or "")  # Python 3.13 has taken the indentation away already
    assert re.search(r"\nBefore: .+\nAfter:  .+", text), f"{each.name}: no sketch"
    assert re.match(r"[A-Z].*\.\n\n", text), f"{each.name}: the first line is no rule"


def test_names_are_unique_and_phases_in_order() -> None:
    assert len({each.name for each in PASSES}) == len(PASSES)
    phases = [(*BEFORE_LOWERING, *AFTER_LOWERING).index(each.phase) for each in PASSES]
    assert phases == sorted(phases)


def test_a_pass_that_is_for_another_kind_of_source_has_no_entry() -> None:
    graph = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 18]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
        )
    )
    for target in (Target(), Target("cuda")):
        names = set(run(graph, Context(target)))
        assert names == {each.name for each in PASSES if each.phase in ("optimise", "padding") and each.is_listed_idle}
        device = set(run(graph, Context(target), AFTER_LOWERING))
        assert device == ({"equal-batches", "slice-sizes", "sizes-on-host"} if target.waits_to_branch else set())
