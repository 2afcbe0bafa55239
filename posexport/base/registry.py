"""Registries of named objects, which installed packages extend by entry points.

A package adds an object by an entry point of the group ``posexport.KIND`` (docs/contributing.md)::

    [project.entry-points."posexport.encodings"]
    ramp = "my_package.ramp"

The package is imported when the name is looked up, not before: ``import posexport`` and ``--help`` run none of its
code, and a package that cannot be imported fails only the commands that name it.
"""

import functools
import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

from posexport.errors import PosexportError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A mapping from names to objects of one kind, each imported on first lookup.

    ``registry[name]`` and ``registry.get(name)`` look up posexport's objects first, then entry points of installed
    packages. Iteration, ``in`` and ``len`` cover posexport's objects, registered ones, and entry points loaded before.

    Args:
        kind: packages add objects by entry points of the group ``posexport.KIND``.
        of: the class of the objects; ``module:CLASS`` is imported when a package's object is checked.
        references: ``module:ATTRIBUTE`` of each object of posexport, or the module that registers it on import.
    """

    def __init__(self, kind: str, of: type | str, references: Mapping[str, str] | None = None) -> None:
        self.kind, self.of = kind, of
        self._references = dict(references or {})
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            reference = self._references.get(name)
            value = self._of_package(name) if reference is None else _imported(reference)
            self._loaded.setdefault(name, value)
        return self._loaded[name]

    def __setitem__(self, name: str, value: T) -> None:
        self._loaded[name] = value

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._references, *self._loaded)))

    def __len__(self) -> int:
        return len(self._references.keys() | self._loaded.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._references or name in self._loaded

    def is_taken(self, name: str, *, by: str) -> bool:
        """Whether another module than ``by`` registers an object of this name, or one is registered."""
        return name in self._loaded or self._references.get(name, by).partition(":")[0] != by

    @property
    def names(self) -> tuple[str, ...]:
        """All names, with installed packages' last."""
        return (*self, *self.packages)

    @property
    def packages(self) -> dict[str, str]:
        """Names of entry points that are not loaded yet -> the package and its version."""
        return {name: package for name, package in added_by_packages(self.kind).items() if name not in self}

    def _of_package(self, name: str) -> T:
        """The object of the entry point ``name``, or the one that its module registers on import.

        Raises:
            KeyError: no installed package has an entry point of that name.
            PosexportError: two packages have one, or it cannot be loaded.
        """
        points = _entry_points(self.kind).get(name, [])
        if not points:
            raise KeyError(name)
        if len(points) > 1:
            packages = " and ".join(sorted(map(_package, points)))
            raise PosexportError(f"{packages} both add {name!r} to posexport.{self.kind}; uninstall one of them")
        where = f"the package {_package(points[0])} adds {name!r} to posexport.{self.kind}"
        try:
            value: Any = points[0].load()
        except Exception as err:  # whatever a third party's module raises
            raise PosexportError(
                f"{where}, but {points[0].value} cannot be loaded: {type(err).__name__}: {err}; repair or uninstall it"
            ) from err
        if name in self._loaded:
            return self._loaded[name]
        of: Any = _imported(self.of) if isinstance(self.of, str) else self.of
        if not isinstance(value, of):
            raise PosexportError(
                f"{where}, but {points[0].value} is no {of.__name__} and registers none called {name!r}; repair or "
                "uninstall it"
            )
        return value  # type: ignore[no-any-return]  # an instance of `of`


def added_by_packages(kind: str) -> dict[str, str]:
    """The names in the group ``posexport.KIND`` -> the package and its version. Imports none of them."""
    return {name: _package(points[0]) for name, points in _entry_points(kind).items()}


@functools.cache
def _entry_points(kind: str) -> "dict[str, list[EntryPoint]]":
    """The entry points of the group ``posexport.KIND`` by name."""
    from importlib.metadata import entry_points  # scans the path, 10 ms

    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=f"posexport.{kind}"):
        points.setdefault(point.name, []).append(point)
    return points


def _imported(reference: str) -> Any:
    """The object that ``module:ATTRIBUTE`` names, or the module."""
    name, _, attribute = reference.partition(":")
    module = importlib.import_module(name)
    return getattr(module, attribute) if attribute else module


def _package(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module
