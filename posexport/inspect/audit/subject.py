"""The subject of an audit: one graph, and what else the command asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

from posexport.inspect.audit.audited_graph import AuditedGraph

if TYPE_CHECKING:
    from posexport.inspect.audit.calls.calls import Calls
    from posexport.inspect.audit.ledger.ledger import Ledger
    from posexport.inspect.audit.ledger.proof import Proof


class Subject(AuditedGraph):
    """A graph with its weights, outputs and calls, as far as an audit compares them.

    Attributes:
        ledger: the graph's weights compared with the checkpoint's, in an audit with ``--against``; None for the second
            and later parts of a model.
        proof: the proof of the graph's outputs against the checkpoint.
        calls: calls of the graph in a child process, in an audit with ``--run``.
    """

    def __init__(self, path: Path, *, provider: str = "cpu") -> None:
        super().__init__(path, provider=provider)
        self.calls: Calls | None = None
        self.ledger: Ledger | None = None
        self.proof: Proof | None = None
