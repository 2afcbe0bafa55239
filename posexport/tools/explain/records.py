"""What `posexport.tools.explain` finds, as it is printed with ``--json``. Imports no torch. Times are milliseconds."""

from typing import Literal

import msgspec

from posexport.bundle.manifest import PassSpec

#: what a kernel works for
Share = Literal["positions", "attention", "rest"]
SHARES: tuple[Share, ...] = ("positions", "attention", "rest")


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one of ONNX Runtime's operators in one call: how many, where, how long.

    An operator that runs others (Scan, If) has no time of its own: what theirs leaves of it is the profile's.
    """

    op_type: str
    provider: str
    count: int
    ms: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one thing costs, and the kernels that do it, longest first.

    ``nodes``: how many nodes of this type the graph has; of an operator that others call, which are named ``within``,
    how many these are. 0: it is no type of node.
    """

    share: Share
    name: str
    nodes: int
    within: list[str]
    ms: float
    kernels: list[Kernel]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes of one type are computed. ``rejected``: what else there was, and why not."""

    node_type: str
    nodes: int
    lowering: str
    rejected: dict[str, str]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One graph, medians of so many calls.

    ``ms``: a call as it is; ``profiled_ms``: one that ONNX Runtime writes a profile of, which takes time for every
    kernel; ``kernels_ms``: what it says of that for kernels. ``rows`` add up to the last, and shares are shares of it.
    """

    file: str
    runs: int
    ms: float
    profiled_ms: float
    kernels_ms: float
    decisions: list[Decision]
    rows: list[Row]

    def taken(self, share: Share) -> float:
        """Which part of the kernels' time goes there, 0 to 1."""
        return sum(row.ms for row in self.rows if row.share == share) / self.kernels_ms if self.kernels_ms else 0.0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle's graphs. ``call``: the sizes of a call, in words; ``passes``: what graph passes did to all of them."""

    bundle: str
    target: str
    provider: str
    threads: int
    onnxruntime: str
    call: str
    parts: list[Part]
    passes: dict[str, PassSpec] = {}

    def to_json(self) -> str:
        document = msgspec.to_builtins(self)
        for part, fields in zip(self.parts, document["parts"], strict=True):
            fields["shares"] = {share: part.taken(share) for share in SHARES}
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
