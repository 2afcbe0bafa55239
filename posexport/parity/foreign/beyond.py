"""What another tool's graph may do with inputs beyond the limits of its source. Imports no torch.

Such a graph may reject them in any words. If it answers, the answer must be the definition's: where the definition has
none, because its table has ended, the answer is a finding.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from posexport.bounds import Bound
from posexport.parity.calls import in_calls
from posexport.parity.criterion import measure
from posexport.parity.grid.inputs import draw
from posexport.parity.grid.memory import Budget
from posexport.parity.grid.point import GridPoint
from posexport.parity.judges.guard import Answer, broken
from posexport.parity.proof import Judge, Run, Subject
from posexport.parity.subjects.runner import RunError
from posexport.spec import Interface

#: of a message, so much is quoted
_QUOTED = 200


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """Judges another tool's graph on inputs outside ``bounds``.

    ``definition`` gives what runs it by PyTorch, in float64 and in the graph's precision; it is asked only if needed.
    """

    model: Interface
    bounds: Sequence[Bound]
    definition: Callable[[], Sequence[Run]]
    values: Judge
    budget: Budget

    def judge(self, subject: Subject, point: GridPoint) -> Answer:
        """Any failure is a rejection; an answer is good where it is the definition's own."""
        feeds = draw(point, self.model.inputs)
        outside = " or ".join(bound.message for bound in broken(self.bounds, self.model, point))
        try:
            outputs = in_calls(subject, feeds, self.model, point.calls)
        except RunError as failure:
            return Answer(True, f"rejected: {own_words(str(failure))}")
        answered = f"it answers an {outside}"
        if not self.budget.fits(point):
            return Answer(False, f"{answered}; there is no memory to see what the source gives there")
        try:
            truth, baseline_outputs = (in_calls(run, feeds, self.model, point.calls) for run in self.definition())
        except (IndexError, RuntimeError, ValueError):  # what PyTorch raises beyond a table
            return Answer(False, f"{answered}, where the source has no positions and gives nothing")
        for y, y64, mine, spec in zip(outputs, truth, baseline_outputs, self.model.outputs, strict=True):
            error = measure(y, y64, spec.axes, None).error
            largest = measure(mine, y64, spec.axes, None).error
            limit = self.values.tolerance(point.length, spec.name, largest if np.isfinite(largest) else 0.0)
            if not error <= limit:
                return Answer(False, f"{answered}, and {spec.name} is off by {error:.1e}, {limit:.1e} is allowed")
        return Answer(True, f"answered as the source computes it, though it is an {outside}", answered=True)


def own_words(message: str) -> str:
    """ONNX Runtime's failure, shortly: which operator, and what it says."""
    if match := re.search(r"while running (\w+) node\. Name:'([^']*)' (?:Status Message: )?(.*)", message):
        node = f" node {match[2]}" if match[2] else ""
        # files and lines of ONNX Runtime's own sources say nothing to a user
        said = re.sub(r"^\S+\.(?:cc|h|cu):\d+ [^()]*\([^()]*\)\s*(?:.*? was false\. )?", "", match[3]).strip()
        text = f"{match[1]}{node}: {said or match[3]}"
    else:
        text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", message)
    return text if len(text) <= _QUOTED else text[: _QUOTED - 3].rstrip() + "..."
