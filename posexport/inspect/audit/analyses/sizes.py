"""Shapes of all values, as integers or expressions of the inputs' axes, inferred with onnx_shape_inference.

Only the shapes of inputs and weights are taken from the file: the shapes that it states for other values may be those
of the example.
"""

import json
import logging
from collections.abc import Sequence
from math import gcd, prod
from typing import Any, cast

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.graph.queries import constant, producer

#: an integer, or an expression of names of axes, for example ``past + sequence``
Size = int | str
#: metadata key under which onnx_shape_inference stores the elements of integer tensors
_ELEMENTS = "pkg.onnx_shape_inference.sym_data"
#: a size that is no size: the end of a Slice that means "up to the end" (tf2onnx writes 1,000,000,000)
_FAR, _UNKNOWN = 10_000_000, "_unknown"
#: largest number of elements of a tensor that may be a shape
_MOST_AXES = 8
#: SymPy's functions in expressions
_FUNCTIONS = {"floor", "ceiling", "Min", "Max", "Mod", "Abs"}


class Sizes:
    """The shapes of a model's values.

    Attributes:
        axes: name of a dynamic axis in expressions -> its name in the file.
        declared: output -> the shape that the file declares.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.axes: dict[str, str] = {}
        self.declared = {value: value.shape for value in model.graph.outputs}
        self._name_axes()
        firsts = [sizes[0] for value in model.graph.inputs if (sizes := self.of(value)) and len(sizes) > 1]
        self._batch = {size for size in firsts if isinstance(size, str) and firsts.count(size) * 2 >= len(firsts)}
        self.infer()

    def infer(self) -> None:
        """Infer all shapes; call it again after a change of the graph."""
        self._forget()
        self._note_filled()
        _infer(self.model)

    def of(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """The shape of ``value``; None if the rank is unknown."""
        if value is None or value.shape is None:
            return None
        sizes = (size if isinstance(size, int) else str(size.value) for size in value.shape)
        return tuple(_UNKNOWN if isinstance(size, int) and size >= _FAR else size for size in sizes)

    def elements(self, value: ir.Value | None) -> list[Size | None] | None:
        """The elements of a small integer tensor, with sizes of inputs as expressions; None if they are unknown."""
        if value is None:
            return None
        if (array := self.constant(value)) is not None:
            return [int(x) for x in array.reshape(-1)] if array.dtype.kind in "iu" else None
        stored = value.metadata_props.get(_ELEMENTS)
        return cast("list[Size | None]", json.loads(stored)) if stored else None

    def constant(self, value: ir.Value | None, most: int = 64) -> "NDArray[Any] | None":
        """The array of a weight or a Constant of at most ``most`` elements."""
        node = producer(value, "Constant")
        if node is not None:
            tensor = ir.convenience.get_const_tensor(value)  # type: ignore[arg-type]
            return None if tensor is None or tensor.size > most else tensor.numpy()
        return constant(value, most)

    def is_free(self, size: Size) -> bool:
        """Whether a size depends on dynamic axes of the inputs only."""
        return isinstance(size, str) and bool(names := set(_names(size)) - _FUNCTIONS) and names <= self.axes.keys()

    def is_batch(self, size: Size) -> bool:
        """Whether a size is the batch size: the first axis of at least half of the inputs."""
        return size in self._batch

    def factor(self, size: Size) -> int:
        """The largest known divisor of a size: 12 for ``12*batch``."""
        if isinstance(size, int):
            return size
        return gcd(
            *(prod(int(part) for part in _top_level(term, "*") if part.isdigit()) for term in _top_level(size, "+-"))
        )

    def text(self, size: Size) -> str:
        """A size as a string, with the file's names of axes."""
        if isinstance(size, int):
            return str(size)
        return "".join(self.axes.get(part, part) for part in _split(size))

    def shape_text(self, sizes: Sequence[Size]) -> str:
        return f"[{', '.join(map(self.text, sizes))}]"

    def _forget(self) -> None:
        """Remove all stated and inferred shapes except those of inputs and weights."""
        for graph in (self.model.graph, *self.model.graph.subgraphs()):
            for node in graph:
                for value in node.outputs:
                    value.shape = None
                    value.metadata_props.pop(_ELEMENTS, None)
            if graph is not self.model.graph:
                for value in graph.inputs:
                    value.shape = None

    def _note_filled(self) -> None:
        """Store the values of small integer ConstantOfShape nodes (torch's repeat), which the inference ignores."""
        for node in self.model.graph.all_nodes():
            if node.op_type != "ConstantOfShape" or node.domain or (size := self.constant(node.inputs[0])) is None:
                continue
            filling = node.attributes.get("value")
            array = None if filling is None else filling.as_tensor().numpy()
            if array is not None and array.dtype.kind == "i" and size.size == 1 and 0 < size.item() <= _MOST_AXES:
                node.outputs[0].const_value = ir.tensor(np.repeat(array.reshape(1), size.item()))

    def _name_axes(self) -> None:
        """Give every dynamic axis of the inputs a name that is valid in expressions; equal names stay equal."""
        names: dict[str, str] = {}
        for value in self.model.graph.inputs:
            if value.shape is None or value.is_initializer():
                continue
            sizes: list[int | str] = []
            for axis, size in enumerate(value.shape):
                stated = size if isinstance(size, int) else size.value
                if isinstance(stated, str) and stated.isdigit():
                    stated = int(stated)  # transformers.exporters writes numbers as names
                if isinstance(stated, int) and stated > 0:
                    sizes.append(stated)
                    continue
                # an axis without a name, or with a question mark, equals no other axis
                key = str(stated) if stated not in (None, "", "?", 0, -1) else f"{value.name} axis {axis}"
                name = names.setdefault(key, f"axis{len(names)}")
                self.axes[name] = key
                sizes.append(name)
            value.shape = ir.Shape(sizes)


def _infer(model: ir.Model) -> None:
    from onnx_shape_inference import infer_symbolic_shapes

    logger = logging.getLogger("onnx_shape_inference")
    level = logger.level
    logger.setLevel(logging.ERROR + 1)  # a shape that it cannot infer is unknown, which is no fault of the file
    try:
        infer_symbolic_shapes(model, policy="skip", warn_on_missing=False, adopt_declared_symbols=False)
    except Exception as err:  # noqa: BLE001 (sizes that contradict each other raise what they raise; the rest is known)
        logging.getLogger(__name__).debug("sizes are known up to %s", err)
    finally:
        logger.setLevel(level)


def _top_level(expression: str, operators: str) -> list[str]:
    """The operands of ``operators`` outside parentheses."""
    parts, depth = [""], 0
    for letter in expression.replace("**", "^"):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter in operators and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _split(expression: str) -> list[str]:
    """Split an expression into names and single characters between them."""
    parts: list[str] = []
    for letter in expression:
        word = letter.isalnum() or letter == "_"
        if parts and word and (parts[-1][-1].isalnum() or parts[-1][-1] == "_"):
            parts[-1] += letter
        else:
            parts.append(letter)
    return parts


def _names(expression: str) -> list[str]:
    return [part for part in _split(expression) if part[0].isalpha() or part[0] == "_"]
