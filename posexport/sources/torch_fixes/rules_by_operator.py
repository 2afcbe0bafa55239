"""Rewrite rules are matched at the nodes of the operator that their pattern ends with, not at every node.

Rules with several outputs list the nodes of the whole graph at each node, before they look at it. Reason: a quarter of
the time of a trace, quadratic in the number of layers. Seen in 2.13 with onnxscript 0.7; what matches is the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult
from onnxscript.rewriter._matcher import SimplePatternMatcher

from posexport.sources.torch_fixes.patch import patched


@contextmanager
def with_rules_by_operator() -> Iterator[None]:
    """Inside the block a rule fails at a node of another operator before anything else is compared."""
    match = SimplePatternMatcher.match

    def match_operator(
        self: SimplePatternMatcher, model: Any, graph: Any, node: ir.Node, **options: Any
    ) -> MatchResult:
        operator = self.pattern.output_nodes[0].op_identifier()
        if operator is not None and operator[1] != node.op_type:
            return MatchResult().fail("another operator")
        return match(self, model, graph, node, **options)

    with patched(SimplePatternMatcher, "match", match_operator):
        yield
