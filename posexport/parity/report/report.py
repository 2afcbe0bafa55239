"""What `posexport.verify` returns, and ``parity.json``. Imports no torch."""

import msgspec

from posexport.errors import PosexportError
from posexport.parity.report.point_table import plain
from posexport.parity.report.record import CACHE as CACHE
from posexport.parity.report.record import Record
from posexport.parity.report.verdict import verdict


class Report(Record, frozen=True, kw_only=True):
    """A whole proof. ``scope`` is ``sample`` where only a bundle's stored sample was looked at.

    ``wrong_provider``: findings about the provider (a node that fell to another one). ``stateful``: the definition
    keeps state, so every point got a fresh copy. ``lengths``: those that were checked in place of the grid's.
    ``failure_location``: where the first failure starts, in words. ``tolerance``: the user's, in place of the
    criterion.
    """

    @property
    def verdict(self) -> str:
        """The verdict in words: ``proven``, or what is less than that and why."""
        return verdict(self).words

    def to_text(self) -> str:
        """The table of lengths and paddings, and what failed."""
        return plain(self)

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
