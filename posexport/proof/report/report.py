"""What `posexport.verify` returns, ``parity.json``, and the same as JUnit XML. Imports no torch.

JUnit in the layout that Jenkins, GitLab and the GitHub reporters read: https://github.com/testmoapp/junitxml
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import msgspec

from posexport.errors import PosexportError
from posexport.proof.report.point_table import to_text
from posexport.proof.report.points import Point, where
from posexport.proof.report.record import CACHE as CACHE
from posexport.proof.report.record import Record, verdict


class Report(Record, frozen=True, kw_only=True):
    """A whole proof.

    Attributes:
        scope: ``grid``, or ``sample`` where only a bundle's stored sample was looked at.
        provider: where the graph ran.
        precision: that it is stored in; of an emulated float32 graph, what it was rounded to.
        points: one for every output at every point.
        medians: of the errors; empty where no group has enough points.
        invariants: what must hold between two runs.
        wrong_provider: nodes that ran on another provider than requested.
        stateful: the definition keeps state, so that every point got a fresh copy.
        lengths: those that were checked in place of the grid's.
        tolerance: the user's, in place of the criterion.
        failure_location: where the first failure starts, in words.
        coverage: every branch of the graph; empty where it has none, or where only chosen lengths were checked.
        findings: of another tool's graph: outputs where a rejection was due; of a quantized one wrong weights.
        conclusion: what was shown of another tool's graph where there are no findings.
        emulated: a copy of the graph was proven that computes in float32 and rounds.
        shipped: of an emulated proof: the graph itself, at some points, on a provider that computes in float32.
        agreement: of a quantized graph: what its precision costs, by output, at points with random inputs.
        counts_tokens: whether lengths are tokens.
        reduced: of a large model: the reduced model that ``points`` are of; the findings are of the full model's file.
        calls: points of the full model then.
    """

    @property
    def verdict(self) -> str:
        """The verdict as a string: ``proven``, or less than that, with the reason."""
        return verdict(self).words

    def to_text(self, *, width: int | None = None, colour: bool = False) -> str:
        """The table of lengths and paddings, and what failed.

        ``width``: of a terminal in columns, to which the table and the sentences are fitted; None: sentences are not
        broken. ``colour``: verdicts have ANSI colours.
        """
        return to_text(self, width=width, colour=colour)

    def to_json(self) -> bytes:
        """The report as JSON that people can read, its verdict first, ending in a newline."""
        document = {"verdict": self.verdict, "passed": self.passed, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> "Report":
        """Reads the report in ``data``; raises PosexportError if it is malformed."""
        try:
            return msgspec.json.decode(data, type=Report)  # what follows from the rest is not read
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
            raise PosexportError(f"this is not a parity report: {err}") from err


#: what XML 1.0 cannot hold, escaped or not
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: a verdict of a report as the child of a test case; a case without child has passed
_CHILDREN = {"fail": "failure", "skipped": "skipped", "error": "error"}
#: and its count in the suite
_COUNTS = {"failure": "failures", "skipped": "skipped", "error": "errors"}


class Case(NamedTuple):
    """A test case; ``words``: the message of a failed or skipped case, else a remark."""

    name: str
    verdict: str
    words: str


def junit(report: Report, name: str) -> bytes:
    """``report`` on the bundle ``name``, as one test suite.

    Its cases: the whole verdict, then every point, median error, invariant, node on the wrong provider, layer with its
    range, overflow, and branch of
    the graph (skipped where no point ran it). The table of the proof is the suite's ``system-out``.
    """
    properties = {
        "verdict": verdict(report).words,
        "scope": report.scope,
        "provider": report.provider,
        "precision": report.precision,
    }
    return _document(name, f"{name}.{report.provider}", list(_cases(report)), properties, to_text(report))


def junit_error(sentence: str, name: str) -> bytes:
    """The test suite of a bundle that could not be checked: one case, in error with ``sentence``."""
    return _document(name, name, [Case("verdict", "error", sentence)])


def _cases(report: Report) -> Iterator[Case]:
    yield Case("verdict", "pass" if report.passed else "fail", report.describe())
    for point in report.points:
        yield Case(f"{point.output or 'refusal'} at {point.where}", point.verdict, _words(point))
    for median in report.medians:
        yield Case(f"median error of {median.output} over {median.where}", median.verdict, median.describe())
    for item in report.invariants:
        output = f" ({item.output})" if item.output else ""
        yield Case(f"{item.name}{output} at length {item.length}", item.verdict, item.note)
    for number, stray in enumerate(report.wrong_provider, 1):
        yield Case(f"node placement {number}", "fail", stray)
    for layer in report.range:
        yield Case(f"range of {layer.layer or 'the graph'}", "pass", f"{layer.largest:.3g} at {where(layer)}")
    for number, overflow in enumerate(report.overflows, 1):
        yield Case(f"overflow {number}", "fail", overflow.describe())
    for branch in report.coverage:
        yield Case(f"branch {branch.branch}", "skipped" if branch.covered_by is None else "pass", branch.note)


def _words(point: Point) -> str:
    parts = [] if point.error is None else [f"error {point.error:.1e}"]
    parts += [] if point.tolerance is None else [f"{point.tolerance:.1e} is allowed"]
    parts += [] if point.worst_baseline_error is None else [f"PyTorch's own error is {point.worst_baseline_error:.1e}"]
    return ", ".join([*parts, *([point.note] if point.note else [])])


def _document(
    name: str, classname: str, cases: Sequence[Case], properties: Mapping[str, str] | None = None, output: str = ""
) -> bytes:
    counts = dict.fromkeys(_COUNTS.values(), 0)
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", name=_legal(f"posexport verify {name}"), tests=str(len(cases)))
    if properties:
        block = SubElement(suite, "properties")
        for key, value in properties.items():
            SubElement(block, "property", name=key, value=_legal(value))
    for case in cases:
        element = SubElement(suite, "testcase", classname=_legal(classname), name=_legal(case.name))
        if child := _CHILDREN.get(case.verdict):
            counts[_COUNTS[child]] += 1
            SubElement(element, child, message=_legal(case.words)).text = _legal(case.words)
        elif case.words:
            SubElement(element, "system-out").text = _legal(case.words)
    for key, count in counts.items():
        suite.set(key, str(count))
    if output:
        SubElement(suite, "system-out").text = _legal(output)
    indent(root)
    data: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _legal(text: str) -> str:
    return _ILLEGAL.sub("?", text)
