"""The first node of a graph that two providers compute differently: values between are exposed as outputs, in rounds.

Exposed values are not fused away: a fault of a fused kernel may be gone then, which is an answer, too.
"""

from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from posexport.inspect.audit.audited_graph import AuditedGraph
from posexport.inspect.audit.calls.calls import Run, distance, is_real
from posexport.inspect.audit.calls.frames import Arrays
from posexport.inspect.audit.calls.process import CallError
from posexport.inspect.audit.reading.read import read_model
from posexport.inspect.audit.rule import name_of

#: values that are exposed at a time, and bytes of weights that are put into a message
_AT_A_TIME, _LARGEST = 24, 1_000_000_000


def first_difference(subject: AuditedGraph, runs: Sequence[Run], feeds: Arrays, least: float) -> tuple[str, str] | None:
    """A node's name and its operator; None where no exposed value differs, or the weights are too large.

    ``runs``: of the two providers. ``least``: what may differ, relative to a value's largest element.
    """
    model = read_model(subject.path)
    tensors = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    if sum(tensor.nbytes for tensor in tensors) > _LARGEST:
        return None
    proto = _whole(model)
    nodes = [node for node in model.graph if any(output.name for output in node.outputs)]
    right, wrong = -1, len(nodes)
    while wrong - right > 1:
        step = max(1, (wrong - right - 1) // _AT_A_TIME)
        places = list(range(right + 1, wrong, step))
        gaps = dict(_gaps(proto, [nodes[place] for place in places], runs, feeds))
        first = next((index for index, place in enumerate(places) if gaps.get(nodes[place], 0.0) > least), None)
        if first is None:
            right = places[-1]
        else:
            right, wrong = places[first - 1] if first else right, places[first]
    return None if wrong == len(nodes) else (name_of(nodes[wrong]), nodes[wrong].op_type)


def _whole(model: ir.Model) -> onnx.ModelProto:
    """The graph with all weights in the message."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    return proto


def _gaps(
    proto: onnx.ModelProto, nodes: Sequence[ir.Node], runs: Sequence[Run], feeds: Arrays
) -> Iterator[tuple[ir.Node, float]]:
    """By how much the outputs of nodes differ, relative to the largest element."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(proto)
    known = {value.name for value in exposed.graph.output}
    names = {node: next(output.name for output in node.outputs if output.name) for node in nodes}
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names.values() if name not in known)
    try:
        first, second = (run(feeds, model=exposed.SerializeToString()) for run in runs)
    except CallError:
        return
    for node, name in names.items():
        if name in first and name in second and is_real(first[name]) and first[name].shape == second[name].shape:
            gap, scale = distance(second[name], first[name])
            yield node, gap / scale if scale else float(gap > 0)
