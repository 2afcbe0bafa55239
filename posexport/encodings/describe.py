"""Description of an encoding, from an instance: its hooks, its operators, its limits of length."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from posexport.encodings.build import build, settings
from posexport.encodings.encoding import Entry
from posexport.encodings.positions import Positions

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
