"""Adapters as ONNX Runtime has them (``--adapter-format onnxruntime``): inputs with defaults, and files beside it.

Shape letters: I inputs, O outputs, R rank, N adapters and none.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from posexport.base.spec import ADAPTER_FILES, ADAPTERS, InputSpec, as_metadata
from posexport.errors import PosexportError
from posexport.graph.transposed import contiguous
from posexport.run import adapter_files

SUFFIX = ".onnx_adapter"


def as_files(model: ir.Model, inputs: Sequence[InputSpec], folder: Path) -> None:
    """Replace stacks of A [N, I, R] and B [N, R, O] by inputs [I, R] and [R, O], in place, and write the adapters.

    The defaults are zeros of the adapters' rank: sizes are constants, since ONNX Runtime reuses buffers by them.

    Raises:
        PosexportError: an adapter of an embedding.
    """
    names = next(spec.names for spec in inputs if spec.role == "adapters")
    assert isinstance(names, list)
    graph = model.graph
    ids = next(value for value in graph.inputs if value.name == ADAPTERS)
    choices: dict[ir.Value, list[ir.Value]] = {}
    for node in _readers(ids):
        (chosen,) = node.outputs
        if node.op_type != "Gather" or any((user.op_type, at) != ("MatMul", 1) for user, at in chosen.uses()):
            raise PosexportError(
                "--adapter-format onnxruntime is for adapters of linear layers, and one changes an embedding; leave "
                "the option out, or that adapter"
            )
        assert node.inputs[0] is not None
        choices.setdefault(node.inputs[0], []).append(chosen)
    stacks: dict[str, NDArray[Any]] = {}
    for stack, values in choices.items():
        assert stack.name is not None
        assert stack.const_value is not None
        stacks[stack.name] = array = contiguous(stack.const_value.numpy())
        one = ir.Value(name=stack.name, type=stack.type, shape=ir.Shape(array.shape[1:]))
        one.const_value = ir.tensor(np.zeros_like(array[0]), name=stack.name)
        for chosen in values:
            ir.convenience.replace_all_uses_with(chosen, one)
        del graph.initializers[stack.name]
        graph.inputs.append(one)
        graph.register_initializer(one)
    RemoveUnusedNodesPass()(model)
    graph.inputs.remove(ids)
    del graph.initializers[ADAPTERS]
    model.metadata_props[ADAPTER_FILES] = as_metadata([f"{name}{SUFFIX}" for name in names])
    for number, name in enumerate(names, 1):
        parameters = {stack: np.ascontiguousarray(array[number]) for stack, array in stacks.items()}
        adapter_files.write(folder / f"{name}{SUFFIX}", parameters)


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that choose by the ids, which may be expanded from their default."""
    for user, _ in value.uses():
        if user.op_type in ("Expand", "Reshape"):
            yield from _readers(user.outputs[0])
        else:
            yield user
