"""The axes of outputs: each is an input's, a fixed size, or follows from inputs' sizes and has a name of its own."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from posexport.errors import PosexportError
from posexport.spec import ENCODER_SEQUENCE, FRAMES, HEIGHT, PATCHES, SAMPLES, SEQUENCE, WIDTH, Axis, OutputSpec

Sizes = dict[str, int]
#: the sizes of an axis at the first sizes, at the second, and with one axis of the second at a time
_Follows = tuple[int, ...]


def output_axes(
    argument: str,
    run: Callable[[Sizes], Mapping[str, Tensor]],
    first: Sizes,
    second: Sizes,
    steps: Mapping[str, int],
) -> list[OutputSpec]:
    """``run``: the module at sizes; ``first`` and ``second`` differ in every axis, which vary in ``steps``.

    Raises:
        PosexportError: outputs have other names or numbers of axes at other sizes.
    """
    answers = [run(sizes) for sizes in (first, second)]
    ranks = [{name: tensor.dim() for name, tensor in answer.items()} for answer in answers]
    if ranks[0] != ranks[1]:
        raise PosexportError(
            f"{argument}: the module gives outputs with other names or numbers of axes, {ranks[0]} and {ranks[1]}, "
            f"at sizes {first} and {second}; they must not depend on sizes"
        )
    shapes = [{name: tuple(tensor.shape) for name, tensor in answer.items()} for answer in answers]
    derived = _Derived(run, first, second)
    third = {axis: min(size + steps.get(axis, 1), second[axis]) for axis, size in first.items()}
    near = _shapes(run, third)
    specs = []
    for name, shape in shapes[0].items():
        axes: list[Axis] = []
        for place, (a, b) in enumerate(zip(shape, shapes[1][name], strict=True)):
            match = [axis for axis in first if (first[axis], second[axis]) == (a, b)]
            # patches put together again have an image's size only where that is a multiple of theirs
            match = [axis for axis in match if name not in near or near[name][place] == third[axis]]
            axes.append(int(a) if a == b else match[0] if match else derived.name(name, place, (a, b)))
        specs.append(OutputSpec(name=name, axes=axes))
    return specs


def _shapes(run: Callable[[Sizes], Mapping[str, Tensor]], sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Of outputs; none where the module does not take the sizes."""
    with suppress(PosexportError):
        return {name: tuple(tensor.shape) for name, tensor in run(sizes).items()}
    return {}


class _Derived:
    """Names of axes that follow from the inputs' sizes: two that always have the same size have one name."""

    def __init__(self, run: Callable[[Sizes], Mapping[str, Tensor]], first: Sizes, second: Sizes) -> None:
        self._run, self._first, self._second = run, first, second
        self._alone: list[dict[str, tuple[int, ...]]] = []
        self._names: dict[_Follows, str] = {}

    def name(self, output: str, place: int, ends: tuple[int, int]) -> str:
        """The name of axis ``place`` of an output that has the sizes ``ends``."""
        if not self._alone:
            for axis in self._first:
                answer = self._run({**self._first, axis: self._second[axis]})
                self._alone.append({name: tuple(tensor.shape) for name, tensor in answer.items()})
        follows = (*ends, *(shapes[output][place] for shapes in self._alone))
        if follows not in self._names:
            of = [axis for axis, size in zip(self._first, follows[2:], strict=True) if size != ends[0]]
            label = _label(of) or f"{output}_axis_{place}"
            self._names[follows] = label if label not in self._names.values() else f"{output}_axis_{place}"
        return self._names[follows]


def _label(of: Sequence[str]) -> str:
    """What follows from these axes; nothing where there is no usual name."""
    if len(of) == 1:
        axis = of[0]
        if axis.endswith((SEQUENCE, ENCODER_SEQUENCE, SAMPLES)):
            return FRAMES
        return f"output_{axis}" if axis.endswith((HEIGHT, WIDTH)) else ""
    return PATCHES if all(axis.endswith((HEIGHT, WIDTH)) for axis in of) else ""
