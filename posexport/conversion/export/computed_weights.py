"""Weights that a module computes from its parameters in each call become stored weights, computed in float64.

The norms of ``spectral_norm``, ``weight_norm`` and weight standardization, ``softplus(a)`` and ``-exp(a_log)`` depend
on no input. A graph with their nodes computes them in float32, where one rounding of a norm moves all outputs to the
same side; stored they are rounded once.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils._pytree import tree_map

from posexport.graph.queries import COMPUTED

#: a result may have as many elements more than the weights that it is computed from
_SMALL = 1024
#: what computes nothing: passes of the graph look for the weights that these read
_LAYOUT = (
    *("_to_copy", "alias", "clone", "contiguous", "copy", "detach", "float", "lift_fresh_copy", "to", "type_as"),
    *("_unsafe_view", "as_strided", "flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "view", "view_as"),
    *("movedim", "permute", "swapaxes", "t", "transpose", "flip", "roll", "expand", "expand_as", "repeat"),
    *("chunk", "index_select", "narrow", "select", "slice", "split", "split_with_sizes", "unbind", "cat", "stack"),
)
_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def store(program: ExportedProgram) -> None:
    """Gives a captured program a buffer for each floating-point value that it computes from its weights alone."""
    weights = _weights(program)
    constant = _constant(program.graph, weights.keys())
    for node in [node for node in program.graph.nodes if node in constant]:
        if all(user in constant or _is_check(user) for user in node.users) or not _is_float(node):
            continue
        closure = _closure(node, constant)
        leaves = [leaf for leaf in closure if leaf in weights]
        if not any(map(_computes, closure)) or not any(map(_is_float, leaves)):
            continue
        value = node.meta["val"]
        if value.numel() <= sum(leaf.meta["val"].numel() for leaf in leaves) + _SMALL:
            computed = _computed(closure, weights).to(value.dtype).contiguous()
            _replace(program, node, _free_name(program, weights, leaves), computed)
            _erase(closure)


def _weights(program: ExportedProgram) -> dict[fx.Node, tuple[str, Tensor]]:
    """The program's inputs that are parameters, buffers it does not write to and constant tensors: name and tensor."""
    signature, held = program.graph_signature, {**program.constants, **program.state_dict}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    written = set(signature.buffers_to_mutate.values())
    return {
        node: (names[node.name], held[names[node.name]])
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names and names[node.name] not in written
    }


def _constant(graph: fx.Graph, weights: Any) -> set[fx.Node]:
    """What depends on ``weights`` and numbers alone; nothing in a program that writes to one of them."""
    constant = set[fx.Node](weights)
    for node in graph.nodes:
        if node.op != "call_function" or not all(source in constant for source in node.all_input_nodes):
            continue
        if isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001 (it has no public name)
            if any(argument in constant for argument in _written(node)):
                return set()
            is_drawn = torch.Tag.nondeterministic_seeded in node.target.tags
            if not is_drawn and not _is_check(node) and node.all_input_nodes and not _written(node):
                constant.add(node)
        elif getattr(node.target, "__name__", "") == "getitem":
            constant.add(node)
    return constant


def _written(node: fx.Node) -> list[Any]:
    """The arguments that an operator writes to."""
    arguments = zip(node.args, node.target._schema.arguments, strict=False)  # type: ignore[union-attr]  # noqa: SLF001
    return [value for value, argument in arguments if argument.alias_info is not None and argument.alias_info.is_write]


def _is_check(node: fx.Node) -> bool:
    """Whether a node compares a tensor's element type, and returns nothing."""
    return node.target is torch.ops.aten._assert_tensor_metadata.default  # noqa: SLF001


def _is_float(node: fx.Node) -> bool:
    return isinstance(value := node.meta.get("val"), Tensor) and value.is_floating_point()


def _computes(node: fx.Node) -> bool:
    """Whether a node changes values, and not their layout alone."""
    operator = node.target
    return isinstance(operator, torch._ops.OpOverload) and operator._schema.name.split("::")[1] not in _LAYOUT  # noqa: SLF001


def _closure(node: fx.Node, constant: set[fx.Node]) -> list[fx.Node]:
    """All that a node depends on, itself last."""
    nodes, left = {node}, [node]
    while left:
        new = set(left.pop().all_input_nodes) & constant - nodes
        nodes |= new
        left += new
    return [other for other in node.graph.nodes if other in nodes]


def _computed(closure: list[fx.Node], weights: dict[fx.Node, tuple[str, Tensor]]) -> Tensor:
    """The value of the last node, in float64."""
    values = dict[fx.Node, Any]()
    for node in closure:
        if node in weights:
            tensor = weights[node][1].detach()
            values[node] = tensor.to(_WIDE.get(tensor.dtype, tensor.dtype))
        else:
            args, kwargs = (_mapped(part, values.__getitem__) for part in (node.args, node.kwargs))
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    result: Tensor = values[closure[-1]]
    return result


def _mapped(arguments: Any, value: Callable[[fx.Node], Any]) -> Any:
    """Arguments of a node with values, and with wide element types."""
    wide = tree_map(lambda part: _WIDE.get(part, part) if isinstance(part, torch.dtype) else part, arguments)
    return fx.node.map_arg(wide, value)


def _free_name(program: ExportedProgram, weights: dict[fx.Node, tuple[str, Tensor]], leaves: list[fx.Node]) -> str:
    """A name after the largest of the weights."""
    largest = max(leaves, key=lambda leaf: leaf.meta["val"].numel())
    name = weights[largest][0] + COMPUTED
    while name in program.state_dict:
        name += "_"
    return name


def _replace(program: ExportedProgram, node: fx.Node, name: str, value: Tensor) -> None:
    """Puts a buffer in place of a node."""
    graph, signature = program.graph, program.graph_signature
    with graph.inserting_before(next(iter(graph.nodes))):
        buffer = graph.placeholder(f"b_{name.replace('.', '_')}")
    buffer.meta = {"val": node.meta["val"]}
    node.replace_all_uses_with(buffer)
    argument = TensorArgument(buffer.name)
    signature.input_specs.insert(0, InputSpec(InputKind.BUFFER, argument, name, persistent=True))
    program.state_dict[name] = value


def _erase(nodes: list[fx.Node]) -> None:
    for node in reversed(nodes):
        if node.op != "placeholder" and not node.users:
            node.graph.erase_node(node)
