"""What `posexport.verify` returns, and ``parity.json``. Imports no torch."""

import msgspec

from posexport.errors import PosexportError
from posexport.parity.report.point_table import plain
from posexport.parity.report.record import CACHE as CACHE
from posexport.parity.report.record import Record
from posexport.parity.report.verdict import verdict


class Report(Record, frozen=True, kw_only=True):
    """A whole proof.

    Attributes:
        scope: ``grid``, or ``sample`` where only a bundle's stored sample was looked at.
        provider: where the graph ran.
        precision: that it is stored in; of an emulated float32 graph, what it was rounded to.
        points: one for every output at every point.
        medians: of the errors; empty where no group has enough points.
        invariants: what must hold between two runs.
        wrong_provider: nodes that ran on another provider than the one asked for.
        stateful: the definition keeps state, so that every point got a fresh copy.
        lengths: those that were checked in place of the grid's.
        tolerance: the user's, in place of the criterion.
        failure_location: where the first failure starts, in words.
        coverage: every branch of the graph; empty where it has none, or where only chosen lengths were checked.
        findings: of another tool's graph: answers where a rejection was due; of a quantized one what is stored wrongly.
        conclusion: what was shown of another tool's graph where there are no findings.
        emulated: a copy of the graph was proven that computes in float32 and rounds.
        shipped: of an emulated proof: the graph itself, at some points, on a provider that computes in float32.
        agreement: of a quantized graph: what its precision costs, by output, at points whose inputs are random.
    """

    @property
    def verdict(self) -> str:
        """The verdict in words: ``proven``, or what is less than that and why."""
        return verdict(self).words

    def to_text(self, *, width: int | None = None, colour: bool = False) -> str:
        """The table of lengths and paddings, and what failed.

        ``width``: of a terminal in columns, to which the table and the sentences are fitted; None: sentences are not
        broken. ``colour``: verdicts have ANSI colours.
        """
        return plain(self, width=width, colour=colour)

    def to_json(self) -> bytes:
        """The report as JSON that people can read, its verdict first, ending in a newline."""
        document = {"verdict": self.verdict, "passed": self.passed, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"

    @staticmethod
    def from_json(data: bytes) -> "Report":
        """The report in ``data``; PosexportError says what is wrong with it."""
        try:
            return msgspec.json.decode(data, type=Report)  # what follows from the rest is not read
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
            raise PosexportError(f"this is not a parity report: {err}") from err
