"""What `posexport.optimize` did."""

from collections.abc import Iterator, Mapping

import msgspec


class PassDone(msgspec.Struct, frozen=True):
    """How many places a pass changed, and why others are as they were."""

    places: int
    left: tuple[str, ...] = ()


class Times(msgspec.Struct, frozen=True):
    """Milliseconds of a call; ``ratio``: the median ratio of neighbouring calls, the new file's to the old one's."""

    call: str
    before: float
    after: float
    ratio: float


class Optimized(msgspec.Struct, frozen=True, kw_only=True):
    """What was done.

    Attributes:
        path: the file that was written.
        refused: why it was not written; empty if it was.
        nodes: of the file, and of the new one with functions counted once.
        opset: of the file, and of the new one.
        passes: by name, of graph passes that changed something or looked at places that they left.
        left_out: graph passes that were not run, with the reason.
        lowerings: how many attention or rotation nodes each lowering computes.
        proof: sentences on calls of both files.
        times: of both files, with ``bench``.
    """

    path: str
    refused: str = ""
    nodes: tuple[int, int]
    opset: tuple[int, int]
    passes: Mapping[str, PassDone]
    left_out: Mapping[str, str]
    lowerings: Mapping[str, int]
    proof: tuple[str, ...] = ()
    times: tuple[Times, ...] = ()

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        for name, done in self.passes.items():
            if done.places:
                yield f"{name}: {done.places} place{'s' * (done.places != 1)}"
            yield from (f"{name} left some as they are: {reason}" for reason in done.left)
        for lowering, count in self.lowerings.items():
            yield f"{count} computed by {lowering}"
        if self.refused:
            yield f"{self.path} is not written: {self.refused}"
            return
        yield from self.proof
        for each in self.times:
            yield f"{each.call}: {each.before:.3g} ms before, {each.after:.3g} ms after, ratio {each.ratio:.2f}"
        yield f"{self.path}: {self.nodes[1]} nodes, the file has {self.nodes[0]}; opset {self.opset[1]}"
