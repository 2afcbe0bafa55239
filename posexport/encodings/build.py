"""From a name, a model's sizes and ``--set`` to an encoding; and an encoding's description from an instance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from posexport.base.options.check import did_you_mean
from posexport.base.options.settings import convert
from posexport.encodings.encoding import ENCODINGS, Encoding, Entry
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError

#: Constructor arguments that ``--beyond`` sets, never ``--set``.
_NOT_SETTINGS = ("beyond", "trained")


def build(name: str, sizes: Mapping[str, int], texts: Mapping[str, str]) -> tuple[Encoding, set[str]]:
    """The encoding called ``name``, and the names in ``sizes`` and ``texts`` that are arguments of its constructor.

    ``texts`` are converted to the constructor's types, and take precedence over ``sizes``. Names that it does not know
    are the caller's to report. Raises PosexportError for an unknown encoding, a text that is no value of its argument,
    or an argument without a default that is in neither.
    """
    entry = lookup(name)
    arguments: dict[str, Any] = {}
    for key, (kind, required) in settings(entry).items():
        if key in texts:
            arguments[key] = convert(f"{name}: {key}", texts[key], kind)
        elif key in sizes:
            arguments[key] = sizes[key]
        elif required:
            raise PosexportError(f"the encoding {name} needs {key}: add --set {key}=VALUE")
    return entry.cls(**arguments), set(arguments)


def lookup(name: str) -> Entry:
    """The registered encoding called ``name``; PosexportError names the closest."""
    entry = ENCODINGS.get(name)
    if entry is None:
        hint = did_you_mean(name, ENCODINGS.names, "see posexport list encodings")
        raise PosexportError(f"unknown encoding {name!r}; {hint}")
    return entry


def settings(entry: Entry) -> dict[str, tuple[Any, bool]]:
    """An encoding's ``--set`` keys: each with its type and whether it is required."""
    return {
        name: (parameter.annotation, parameter.default is parameter.empty)
        for name, parameter in entry.cls.arguments().items()
        if name not in _NOT_SETTINGS
    }


FAMILIES = {
    "input": "added to or joined with the embeddings",
    "rotation": "rotates queries and keys",
    "bias": "a bias on the scores, which no query or key changes",
    "query-key": "a term of scores or context that depends on queries, keys or probabilities",
    "control": "nothing",
}


@dataclass(frozen=True)
class Description:
    """``families``: keys of `FAMILIES`. ``operators``: names of the position operators that its terms use."""

    families: list[str]
    hooks: list[str]
    operators: list[str]
    trained_length: int | None
    limit: int | None
    boundaries: list[int]
    settings: list[str]


def describe(entry: Entry, sizes: Mapping[str, int]) -> Description:
    """The encoding in a model of these sizes (heads, head_size, hidden, max_positions), with all else as it is."""
    encoding = build(entry.name, sizes, {})[0].in_layer(0)
    families = {"embed": "input", "rotate": "rotation"}
    kinds = [families[hook] for hook in encoding.hooks if hook in families]
    operators = []
    side = encoding.window or 2
    at = Positions.counted(4) if encoding.axes == 1 else Positions.image(side, side)
    q_BHTD = torch.zeros(1, sizes["heads"], at.slots_T.shape[0], sizes["head_size"])
    with torch.no_grad():
        for term in (encoding.scores(q_BHTD, q_BHTD, at, at), encoding.values(at, at)):
            if term is not None:
                operators.append(term.operator.name)
                kinds.append("query-key" if term.operator.takes or encoding.reads_input else "bias")
    return Description(
        families=list(dict.fromkeys(kinds)) or ["control"],
        hooks=list(encoding.hooks),
        operators=operators,
        trained_length=encoding.trained_length,
        limit=encoding.limit,
        boundaries=encoding.boundaries,
        settings=list(settings(entry)),
    )
