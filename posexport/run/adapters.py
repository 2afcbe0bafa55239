"""The LoRA adapter of each row of a call, by the names that the manifest has."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from posexport.base.options.check import did_you_mean
from posexport.base.options.several import several
from posexport.base.spec import InputSpec
from posexport.errors import PosexportError

#: a name, for all rows or one for each; None: no adapter
AdapterNames = str | Iterable[str | None]


def names_of(inputs: Sequence[InputSpec]) -> list[str]:
    """The names of a bundle's adapters; empty: it has none."""
    spec = next((spec for spec in inputs if spec.role == "adapters"), None)
    return list(spec.names) if spec is not None and isinstance(spec.names, list) else []


def adapter_feeds(
    inputs: Sequence[InputSpec], adapter: AdapterNames | None, rows: int, what: str = "texts"
) -> dict[str, NDArray[np.int64]]:
    """The feed of a bundle's adapters, [B], by the name of its input; none where no ``adapter`` is named.

    Raises:
        PosexportError: a bundle without adapters, an unknown name, or another number of names than of rows.
    """
    if adapter is None:
        return {}
    known = names_of(inputs)
    if not known:
        raise PosexportError(
            "this bundle has no adapters to choose from; convert it again with --adapters NAME=DIR, or name none"
        )
    names = [adapter] * rows if isinstance(adapter, str) else several(adapter)
    if names is None or len(names) != rows:
        raise PosexportError(f"adapter must be a name, or one for each of {rows} {what}, got {adapter!r:.60}")
    for name in names:
        if name is not None and name not in known:
            hint = did_you_mean(str(name), known)
            raise PosexportError(
                f"unknown adapter {name!r:.60}; this bundle has {', '.join(known)}{hint and f'; {hint}'}"
            )
    spec = next(spec for spec in inputs if spec.role == "adapters")
    return {spec.name: np.array([0 if name is None else known.index(name) + 1 for name in names], np.int64)}
