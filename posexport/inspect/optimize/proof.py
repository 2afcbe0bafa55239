"""Proves an optimised file against the file that it was made from, on calls of both."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from posexport.base.options.commands import OptimizeOptions
from posexport.base.targets.provider_options import bytes_of
from posexport.inspect.audit.calls.calls import Calls, distance, is_real
from posexport.inspect.audit.calls.frames import Arrays
from posexport.inspect.audit.calls.inputs import Call
from posexport.inspect.audit.calls.process import CallError, Child
from posexport.inspect.audit.repairs.compared import NotProvenError, is_padded, padded_calls, real_gap, sized_calls
from posexport.inspect.audit.rules.unlike_calls import held_states
from posexport.proof.branches.probes import Branch, Probe, watch

#: tokens in the cache and after the call, of calls behind a cache
_CUTS = ((4, 5), (4, 11), (20, 23))
#: tokens and rows of further calls, for branches that are for long rows or many of them
_LONGER, _ROWS = (130, 260, 520, 1040), (1, 2, 5)


@dataclass
class Compared:
    """What calls of both files showed.

    Attributes:
        calls: computed by both, with the same outputs.
        behind: of these, calls that continue a cache.
        refused: calls that the file fails in.
        largest: the largest difference, relative to the largest value of its output.
        at_padding: outputs of padded tokens differ by more than rounding.
        ran, branches: of the optimised file.
    """

    calls: int = 0
    behind: int = 0
    refused: int = 0
    largest: float = 0.0
    at_padding: bool = False
    ran: set[str] = field(default_factory=set)
    branches: set[str] = field(default_factory=set)


class _Pair:
    """Both files, fed with the same arrays; ``tolerance`` in place of rounding, for a file of lower precision."""

    def __init__(self, original: Calls, optimised: Child, watched: "_Watched | None", tolerance: float | None) -> None:
        self.original, self.optimised, self.watched, self.tolerance = original, optimised, watched, tolerance
        self.result = Compared()

    def compare(self, call: Call, feeds: Mapping[str, NDArray[Any]]) -> Arrays | None:
        """Compare the outputs for ``feeds``; returns the file's, or None where it fails.

        Raises:
            NotProvenError: the optimised file fails, or computes something else.
        """
        right = self.original.run(feeds)
        if not right:
            self.result.refused += 1
            return None
        try:
            outputs = self.optimised(feeds)
        except CallError as err:
            raise NotProvenError(f"it fails at {call}, where the file does not: {err}") from err
        for name, expected in right.outputs.items():
            self._check(name, outputs.get(name), expected, call)
        if self.watched is not None:
            self.watched(feeds)
        self.result.calls += 1
        return right.outputs

    def _check(self, name: str, y: NDArray[Any] | None, expected: NDArray[Any], call: Call) -> None:
        if y is None or y.shape != expected.shape or y.dtype != expected.dtype:
            raise NotProvenError(f"its output {name!r} has another shape or type at {call}")
        gap, scale = distance(y, expected)
        off = gap / scale if scale else gap
        if is_real(expected) and not is_padded(call):
            self.result.largest = max(self.result.largest, off)
        if self.tolerance is not None and is_real(expected):
            wrong = off > self.tolerance
        else:
            wrong = self._differs(name, y, expected, replace(call, start=0))
        if wrong:
            raise NotProvenError(f"its output {name!r} differs by {off:.1e} of the largest value at {call}")

    def _differs(self, name: str, y: NDArray[Any], expected: NDArray[Any], call: Call) -> bool:
        """Whether it is more than rounding; entries of padded tokens, which mean nothing, are only noted."""
        if self.original.gap(name, y, expected, [call]) is None:
            return False
        if not is_padded(call) or real_gap(self.original, name, y, expected, call) is not None:
            return True
        self.result.at_padding = True
        return False


class _Watched:
    """A copy of the optimised file that says which branches ran."""

    def __init__(self, path: Path, start: Callable[[Path], Child]) -> None:
        model = ir.from_proto(onnx.load(str(path), load_external_data=False))
        self.probes: list[Probe] = watch(model)
        self.ran: set[str] = set()
        # in the same folder, for its external data
        self.copy = path.with_name(f"watched-{path.name}")
        self._child = None
        if self.probes:
            onnx.save(ir.to_proto(model), str(self.copy))
            self._child = start(self.copy)

    @property
    def branches(self) -> set[str]:
        bodies = {"If": ("then_branch", "else_branch")}
        return {str(Branch(each.node, body)) for each in self.probes for body in bodies.get(each.op_type, ("body",))}

    def __call__(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        if self._child is not None:
            outputs = self._child(feeds)
            ran = (pair for probe in self.probes for pair in probe.ran(outputs[probe.value]))
            self.ran |= {str(Branch(node, body)) for node, body in ran}


def prove(
    original: Calls, path: Path, options: OptimizeOptions, *, longest: int | None, tolerance: float | None = None
) -> Compared:
    """Compare the file in ``path`` with the file of ``original``, which computes rows of ``longest`` tokens at most.

    Raises:
        NotProvenError: an output differs, or no call is computed by the file.
    """
    with ExitStack() as children:

        def start(file: Path) -> Child:
            return children.enter_context(Child(file, "cpu", seconds=options.timeout, most=bytes_of(options.memory)))

        watched = _Watched(path, start)
        children.callback(watched.copy.unlink, missing_ok=True)
        pair = _Pair(original, start(path), watched, tolerance)
        for call in _calls(original):
            pair.compare(call, original.inputs.feeds(call))
        for call, feeds in _behind_a_cache(original):
            pair.result.behind += pair.compare(call, feeds) is not None
        for call in _longer(original, longest):
            if watched.ran == watched.branches:
                break
            pair.compare(call, original.inputs.feeds(call))
        if not pair.result.calls:
            raise NotProvenError("the file computes none of the calls that were tried")
        pair.result.ran, pair.result.branches = watched.ran, watched.branches
        return pair.result


def _calls(original: Calls) -> Sequence[Call]:
    return [*sized_calls(original, ()), *padded_calls(original)]


def _longer(original: Calls, longest: int | None) -> Iterator[Call]:
    """Calls of more tokens, with a shorter row: up to the most that the file computes."""
    if not original.inputs.has("tokens"):
        return
    lengths = [length for length in _LONGER if longest is None or length < longest]
    for length in [*lengths, *([longest] if longest else [])]:
        for count in _ROWS:
            shorter = length - (length // 3 if count > 1 else 0)
            yield Call(((1, shorter), *((row, length) for row in range(2, count + 1))))


def _behind_a_cache(original: Calls) -> Iterator[tuple[Call, Arrays]]:
    """Calls that continue a cache that the file computed."""
    if not original.inputs.past or not original.inputs.has("tokens"):
        return
    for tokens, total in _CUTS:
        rows = ((1, total), (2, total))
        before = original(Call(tuple((seed, tokens) for seed, _ in rows)))
        held = held_states(original, before.outputs) if before else None
        if held is not None:
            call = Call(rows, start=tokens)
            yield call, {**original.inputs.feeds(call), **held}
