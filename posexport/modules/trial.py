"""Calls of a user's module at sizes that are drawn for it: an error that says what it did, or an answer why not."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from posexport.errors import PosexportError
from posexport.modules.user_module import at, copied, named_outputs
from posexport.sources import memory_mapped
from posexport.sources.example import example
from posexport.spec import ENCODER_SEQUENCE, SEQUENCE, InputSpec
from posexport.system.user_code import is_external, line_of_error, quoted, raised
from posexport.torch_fixes.as_exported import as_exported

Sizes = dict[str, int]
#: axes whose longest input is looked for
SEARCHED = (SEQUENCE, ENCODER_SEQUENCE)


class Trial:
    """The module to try, as a copy where it can be copied."""

    def __init__(self, argument: str, module: nn.Module, inputs: list[InputSpec]) -> None:
        self.argument, self.inputs = argument, inputs
        self.original = module
        self.small = memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE
        self.module = self.fresh() if self.small else module
        self.shapes = self.table_shapes()
        self.watched = self.small
        #: axes of inputs, with axes of outputs, by name and number, that have their size; see `follow`
        self.followed: set[tuple[str, str, int]] = set()

    def fresh(self) -> nn.Module:
        return copied(self.argument, self.original)

    def __call__(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # a module may write to its inputs
        clones = {name: tensor.clone() for name, tensor in tensors.items()}
        with torch.no_grad(), as_exported():
            return named_outputs(self.module(**clones))

    def run(self, sizes: Sizes, tensors: Mapping[str, Tensor] | None = None, what: str = "") -> dict[str, Tensor]:
        """The outputs at ``sizes``, or a PosexportError that says what the module did there."""
        try:
            return self(example(self.inputs, sizes) if tensors is None else tensors)
        except PosexportError as err:
            raise PosexportError(f"{self.argument}: {err}") from err
        except BaseException as err:
            if is_external(err):
                raise
            line = line_of_error(err)
            raise PosexportError(
                f"{self.argument}: the module failed at sizes {sizes}{what}: {type(err).__name__}: {quoted(err)}"
                + (f" ({line})" if line else "")
            ) from err

    def attempt(self, sizes: Sizes, from_last: int = 0) -> str:
        """Why the module does not take ``sizes``; nothing where it does.

        ``from_last``: all ids of tokens are the last one (1), or the one before it (2).
        """
        tensors = example(self.inputs, sizes)
        for spec in self.inputs if from_last else ():
            if spec.role == "tokens" and spec.size is not None:
                tensors[spec.name].fill_(max(spec.size - from_last, 0))
        try:
            answer = self(tensors)
        except BaseException as err:
            if isinstance(err, KeyboardInterrupt):
                raise
            if is_external(err):
                raise NoRoomError from err
            line = line_of_error(err)
            return f"the module raised {raised(err)} at {_at(sizes)}" + (f" ({line})" if line else "")
        return self.grown(sizes) or self.cut(sizes, answer)

    def follow(self, axis: str, first: Sizes, second: Sizes) -> None:
        """Note the axes of outputs that have the size of ``axis`` at both, for `attempt` to see where one ends."""

        def equal(sizes: Sizes) -> set[tuple[str, str, int]]:
            shapes = {name: tensor.shape for name, tensor in self.run(sizes).items()}
            return {
                (axis, name, at)
                for name, shape in shapes.items()
                for at in range(len(shape))
                if shape[at] == sizes[axis]
            }

        self.followed |= equal(first) & equal(second)

    def cut(self, sizes: Sizes, answer: Mapping[str, Tensor]) -> str:
        """Which output does not follow the inputs any more; nothing where all do."""
        for axis, name, number in self.followed:
            got = list(answer[name].shape) if name in answer else None
            if got is None or got[number : number + 1] != [sizes[axis]]:
                return f"the module cuts longer inputs: its output {name} has the shape {got} at {_at(sizes)}"
        return ""

    def table_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor that the module holds."""
        return {
            f"{path}.{name}" if path else name: tuple(value.shape)
            for path, part in self.module.named_modules()
            for name, value in {**vars(part), **dict(part.named_buffers(recurse=False))}.items()
            if isinstance(value, Tensor)
        }

    def grown(self, sizes: Sizes) -> str:
        """Which of its tensors the module made anew, in another shape, in a call; nothing where it made none."""
        shapes = self.table_shapes() if self.watched else {}
        changed = [name for name, shape in shapes.items() if self.shapes.get(name) not in (None, shape)]
        if not changed:
            return ""
        name = changed[0]
        before, after = list(self.shapes[name]), list(shapes[name])
        self.module = self.fresh()
        return (
            f"forward regrows {name} (shape {before}) at {_at(sizes)} (shape {after}), and a graph keeps the rows "
            "that it was traced with; make it for the longest input in __init__"
        )


class NoRoomError(Exception):
    """The machine has not enough memory for a call."""


def _at(sizes: Sizes) -> str:
    return at({axis: size for axis, size in sizes.items() if axis in SEARCHED} or sizes)
