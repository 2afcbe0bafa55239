"""A definition without weights, and where each of its weights comes from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from posexport.checkpoints.transforms import Shape, Transform
from posexport.definition.definition import Definition


@dataclass(frozen=True)
class Constant:
    """A formula's values, and how far a file's may be from them (its format's rounding): relative and absolute."""

    values: Tensor
    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True)
class Origin:
    """The tensor with any of ``names`` (all that the file has must be equal), changed by ``transforms`` in turn.

    In the tables of families names may be modules' names, to which a parameter's last name is added (`below`).
    No names at all, or ``optional`` and none of them in the file: zeros.
    """

    names: tuple[str, ...]
    transforms: tuple[Transform, ...] = ()
    optional: bool = False

    def shapes(self, parameter: Shape) -> list[Shape]:
        """For a parameter of this shape: the shape of the tensor, then of the result of each transform."""
        shapes = [parameter]
        for transform in reversed(self.transforms):
            shapes.insert(0, transform.shape(shapes[0]))
        return shapes

    def then(self, *transforms: Transform) -> "Origin":
        return replace(self, transforms=(*self.transforms, *transforms))

    def renamed(self, new: Callable[[str], str]) -> "Origin":
        """Returns the same origin under other names."""
        return replace(self, names=tuple(new(name) for name in self.names))

    def below(self, leaf: str) -> "Origin":
        """The origin of the parameter ``leaf`` of the named modules."""
        return self.renamed(lambda module: f"{module}.{leaf}")


#: of a parameter that checkpoints do not have
ZEROS = Origin(())
#: modules or parameters of a definition to the checkpoint's names
NameMap = Mapping[str, str | Origin]


@dataclass(frozen=True)
class Plan:
    """A definition on the meta device and the origin of each of its parameters, by name."""

    model: Definition
    origins: dict[str, Origin]
    #: the longest input where the family says it, not the encoding
    longest: int | None = None
    #: tensors that a file may have and that must hold these values
    constants: Mapping[str, Constant] = field(default_factory=dict)
    #: tensors that a file may have and that do not matter at inference
    unread: tuple[str, ...] = ()
    #: prefixes of tensors that this task does not use, each with a description, as in ``Family.beside``
    beside: Mapping[str, str | None] = field(default_factory=dict)
    #: keys of config.json that decide which tensors there are
    decides: tuple[str, ...] = ()


def origin(stored: str | Origin) -> Origin:
    """The origin for an entry of a `NameMap`."""
    return Origin((stored,)) if isinstance(stored, str) else stored


def in_layers(count: int, here: str, there: str, names: NameMap) -> dict[str, Origin]:
    """``names`` of a layer, for every layer: below ``here``, and in the file after ``there``.

    ``{i}`` in the latter or in a name is replaced by the layer's number.
    """

    def numbered(i: int) -> Callable[[str], str]:
        return lambda name: (there + name).format(i=i)

    return {
        f"{here}.{i}.{path}": origin(stored).renamed(numbered(i))
        for i in range(count)
        for path, stored in names.items()
    }


def origins_of(model: nn.Module, modules: NameMap, parameters: NameMap | None = None) -> dict[str, Origin]:
    """The origin of every parameter: from ``parameters``, else below its module's in ``modules``.

    A ``table`` of a definition is a ``weight`` of the checkpoint.
    """
    origins: dict[str, Origin] = {}
    for name, _ in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        if parameters is not None and name in parameters:
            origins[name] = origin(parameters[name])
        else:
            origins[name] = origin(modules[module]).below("weight" if leaf == "table" else leaf)
    return origins
