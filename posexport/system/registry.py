"""Objects that are imported by name when they are first asked for: posexport's, and those of other packages.

A package outside this repository registers an object as an entry point of a group; docs/contributing.md has an example.
posexport's objects stand in a table in the code, so that a checkout which is not installed has them as well.
"""

import functools
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

_T = TypeVar("_T")


class Registry(MutableMapping[str, _T]):
    """A mapping from names to objects; its keys import nothing, a value imports the module that it is in.

    Args:
        group: the group of entry points by which other packages register objects.
        built_in: posexport's objects, by name, as ``module:attribute``. A package cannot take the place of one.
    """

    def __init__(self, group: str, built_in: Mapping[str, str]) -> None:
        self.group, self._built_in = group, built_in
        self._loaded: dict[str, _T] = {}

    @functools.cached_property
    def _entries(self) -> dict[str, EntryPoint | None]:
        """Entry points by name; None for an object that was set in this process."""
        entries: dict[str, EntryPoint | None] = {each.name: each for each in entry_points(group=self.group)}
        own = {name: EntryPoint(name, value, self.group) for name, value in self._built_in.items()}
        return {**own, **{name: entry for name, entry in entries.items() if name not in own}}

    def __getitem__(self, name: str) -> _T:
        entry = self._entries[name]
        if name not in self._loaded and entry is not None:
            self._loaded[name] = entry.load()
        return self._loaded[name]

    def __setitem__(self, name: str, value: _T) -> None:
        self._entries[name], self._loaded[name] = None, value

    def __delitem__(self, name: str) -> None:
        del self._entries[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: Any) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
