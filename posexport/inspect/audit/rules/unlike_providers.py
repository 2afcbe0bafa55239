"""PX706: two providers that compute different outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

from posexport.inspect.audit.calls.bisect import first_difference
from posexport.inspect.audit.calls.calls import Calls, Run, distance, failing, is_real
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.calls.process import CallError
from posexport.inspect.audit.rule import Place, Rule
from posexport.inspect.audit.subject import Subject
from posexport.proof.foreign.runner import own_words

#: what may differ, in units of what rounding may change on one provider: GPUs sum in another order and precision
_FACTOR = 10.0


@dataclass(frozen=True)
class _Other:
    """Another provider of a graph's calls."""

    calls: Calls
    provider: str
    run: Run

    def places(self) -> Iterator[Place]:
        """Every call that the provider does not compute, or computes differently."""
        for length in self.calls.working:
            for batch in (1, 3):
                call = Call(tuple((row, length) for row in range(1, batch + 1)))
                if self.calls(call):
                    yield from self._compared(call)

    def _compared(self, call: Call) -> Iterator[Place]:
        name, first = self.provider, self.calls.subject.provider
        feeds, right = self.calls.inputs.feeds(call), self.calls(call).outputs
        try:
            outputs = self.run(feeds)
        except CallError as err:
            yield Place(f"{call} fails on {name} and not on {first}: {own_words(str(err))}", failing(str(err)))
            return
        for output, expected in right.items():
            y = outputs.get(output)
            if y is None or not is_real(expected) or y.shape != expected.shape:
                continue
            gap, scale = distance(y, expected)
            limit = _FACTOR * max(self.calls.least * scale, self.calls.noise(output, call))
            if gap <= limit:
                continue
            runs = (self.calls.direct, self.run)
            where = first_difference(self.calls.subject, runs, feeds, _FACTOR * self.calls.least)
            started = f"; it starts at {where[1]} {where[0]!r}" if where else "; no single node is at fault"
            off = gap / scale if scale else float("inf")
            yield Place(
                f"{output!r} on {name} is not that on {first} at {call}: off by {off:.1e} of the largest "
                f"value{started}",
                [where[0] if where else output],
            )
            return


def _check(subject: Subject) -> Iterator[Place]:
    calls = subject.calls
    if calls is None or calls.another is None:
        return
    for provider in calls.providers:
        place = next(_Other(calls, provider, calls.another(subject.path, provider)).places(), None)
        if place is not None:
            yield place


RULE = Rule(
    code="PX706",
    name="unlike-providers",
    severity="error",
    finds="another execution provider (--provider, repeated) fails or has other outputs",
    why="A kernel of one provider is wrong for this graph, or lacks a case: the file is right on your machine and "
    "wrong on others.",
    remedy="Use the provider that is right, another optimisation level there, or another form of the named node; "
    "report it to ONNX Runtime with this graph.",
    reads="calls",
    check=_check,
)
