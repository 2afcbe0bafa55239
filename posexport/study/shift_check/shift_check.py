"""All checks of an encoding, in one report."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from posexport.sources import source
from posexport.sources.encoding_alone import EncodingAlone, alone
from posexport.study.shift_check import relative, rotation, sinusoid
from posexport.study.shift_check.records import Check

CHECKS = (
    sinusoid.check,
    relative.check_scores,
    relative.check_values,
    relative.check_toeplitz,
    rotation.check_norms,
    rotation.check_distance,
    rotation.check_moved,
)


@dataclass(frozen=True)
class ShiftReport:
    """The claims of an encoding about shifted positions, and their checks."""

    subject: EncodingAlone
    checks: list[Check]

    @property
    def good(self) -> bool:
        return all(check.passed for check in self.checks if check.applies)

    @property
    def verdict(self) -> str:
        """``passed``, or ``failed:`` and the properties that do not hold."""
        failed = [check.claim for check in self.checks if check.applies and not check.passed]
        return f"failed: {'; '.join(failed)}" if failed else "passed"

    def to_json(self) -> str:
        """One JSON document; a property that does not apply has neither a figure nor ``passed``."""
        checks = [
            {**msgspec.to_builtins(check), "applies": check.applies, "passed": check.passed} for check in self.checks
        ]
        layer = self.subject.layer
        document = {"verdict": self.verdict, "encoding": self.subject.entry.name, "parameters": layer.parameters_given}
        return json.dumps({**document, "checks": checks})

    def to_text(self) -> str:
        parameters = f" ({self.subject.parameters})" if self.subject.parameters else ""
        lines = [f"{self.subject.entry.name}{parameters}, in float64"]
        width = max(len(check.claim) for check in self.checks)
        for check in self.checks:
            if check.figure is None:
                lines.append(f"  --    {check.claim:{width}}  does not apply: {check.detail}")
            else:
                verdict = "ok  " if check.passed else "FAIL"
                figure = f"{check.figure:.2g} (allowed {check.allowed:.0e})"
                lines.append(f"  {verdict}  {check.claim:{width}}  {figure}: {check.detail}")
        return "\n".join(lines)


def check_shift(name: str, pairs: Sequence[str] = ()) -> ShiftReport:
    """Check the encoding called ``name``, with settings as texts KEY=VALUE.

    Learned parameters are drawn at random, large enough that no property holds because values are almost zero.

    Raises:
        PosexportError: an unknown encoding or setting, or a value that does not fit.
    """
    subject = alone(name, pairs)
    source.draw(subject.layer, subject.seed)
    return ShiftReport(subject, [check(subject) for check in CHECKS])
