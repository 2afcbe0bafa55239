"""Values of a traced decoder: which are computed from its tokens, and which from sizes, its mask and weights alone."""

from dataclasses import dataclass, field
from typing import NoReturn

import onnx_ir as ir

from posexport.base.spec import BATCH, SEQUENCE
from posexport.base.system.user_code import line_of_trace
from posexport.graph.builder import Builder
from posexport.graph.passes.graph_pass import NotCausalError, NotInsertedError
from posexport.graph.queries import bodies, sizes

_STACK = "pkg.torch.onnx.stack_trace"


def refuse(node: ir.Node, why: str, kind: type[NotInsertedError] = NotInsertedError) -> NoReturn:
    """Raise NotInsertedError for a node."""
    line = line_of_trace(node.metadata_props.get(_STACK, ""))
    raise kind(f"{why} ({line})" if line else f"{node.name}: {why}")


def sees_later(node: ir.Node) -> NoReturn:
    """Raise NotCausalError for attention."""
    refuse(node, "its attention sees later tokens", NotCausalError)


@dataclass
class Colours:
    """The values of a graph by what they depend on; values in no set are the same for all inputs.

    Attributes:
        ids: the input of token ids, [B, T].
        mask: the input of the mask, [B, T], if there is one.
        positions: the input of positions, [B, T], if there is one.
        content: computed from elements of the ids.
        sized: not from these, but from the number of tokens or from the mask.
        of_mask, of_positions: values of ``sized`` that are computed from elements of the mask, or of the positions.
        opaque: values of ``sized`` that operators of posexport compute, which have no function yet.
    """

    ids: ir.Value
    mask: ir.Value | None
    positions: ir.Value | None = None
    content: set[ir.Value] = field(default_factory=set)
    sized: set[ir.Value] = field(default_factory=set)
    of_mask: set[ir.Value] = field(default_factory=set)
    of_positions: set[ir.Value] = field(default_factory=set)
    opaque: set[ir.Value] = field(default_factory=set)


def coloured(graph: ir.Graph, ids: ir.Value, mask: ir.Value | None, positions: ir.Value | None) -> Colours:
    """The colours of all values of ``graph``."""
    colours = Colours(ids, mask, positions, {ids})
    colours.sized |= {value for value in (mask, positions) if value is not None}
    colours.of_mask |= {mask} if mask is not None else set()
    colours.of_positions |= {positions} if positions is not None else set()
    for node in graph:
        inputs, outputs = set(node.inputs), node.outputs
        if bodies(node) and colours.content & inputs:
            refuse(node, f"a {node.op_type} reads tokens")
        if node.op_type == "Shape" and not node.domain:
            if any(isinstance(size, str) and SEQUENCE in size for size in _returned_sizes(node)):
                colours.sized.update(outputs)
        elif colours.content & inputs:
            colours.content.update(outputs)
        else:
            if colours.sized & inputs:
                colours.sized.update(outputs)
            if node.domain or colours.opaque & inputs:
                colours.opaque.update(outputs)
            for computed in (colours.of_mask, colours.of_positions):
                if computed & inputs:
                    computed.update(outputs)
    return colours


def ask_ids_for_sizes(graph: ir.Graph, colours: Colours, g: Builder) -> None:
    """Sizes of any value as sizes of the ids, so that what computes content has as many tokens as are new."""
    for node in list(graph):
        if node.op_type != "Shape" or node.domain or node.inputs[0] is colours.ids:
            continue
        of_content = node.inputs[0] in colours.content
        parts = [_asked(size, colours, g, of_content=of_content) for size in _returned_sizes(node)]
        if not parts or None in parts:
            continue
        known = [part for part in parts if part is not None]
        whole = known[0] if len(known) == 1 else g.shape(*known)
        if not isinstance(whole, ir.Value):
            whole = g.shape(whole)
        if any(isinstance(size, str) and SEQUENCE in size for size in _returned_sizes(node)):
            colours.sized.add(whole)
        ir.convenience.replace_all_uses_with(node.outputs[0], whole, replace_graph_outputs=True)
        graph.remove(node, safe=True)
    graph.sort()


def _asked(size: int | str, colours: Colours, g: Builder, *, of_content: bool) -> ir.Value | list[int] | None:
    """A size as one of the ids; None where it is no number of rows or of tokens."""
    if isinstance(size, int):
        return [size]
    batch, tokens = (g.size(colours.ids, axis) for axis in (0, 1))
    if size == BATCH:
        return batch
    of_all_rows = sorted(size.split("*")) == [BATCH, SEQUENCE]
    if not (of_all_rows or size == SEQUENCE or of_content):
        return None
    asked = g.Mul(batch, tokens) if of_all_rows else tokens
    colours.sized |= {tokens, asked}
    return asked


def _returned_sizes(node: ir.Node) -> tuple[int | str, ...]:
    shape = sizes(node.inputs[0]) or ()
    return shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(shape))]
