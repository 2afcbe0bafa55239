"""The proof of `posexport verify` against the checkpoint, in one line."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from posexport.errors import PosexportError


@dataclass(frozen=True)
class Proof:
    """What the proof says. ``passed``: None where there is none, for the reason in ``text``."""

    passed: bool | None
    text: str


def prove(file: Path, checkpoint: Path) -> Proof:
    """Proves a graph, or the bundle that it is in, against ``checkpoint``. Needs PyTorch."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return Proof(None, "the proof needs PyTorch and transformers; the ledger alone was made")
    from posexport.conversion.verification import verify

    folder = checkpoint.parent if checkpoint.is_file() else checkpoint
    target = file.parent if (file.parent / "posexport.json").is_file() else file
    try:
        report = verify(target, str(folder))
    except PosexportError as err:
        return Proof(None, str(err))
    return Proof(report.passed, report.verdict)
