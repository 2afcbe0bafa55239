"""A run that goes on where an earlier one ended. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from posexport.bench.machine import machine
from posexport.bench.measurement import Conditions
from posexport.bench.recipes import code
from posexport.bench.records import Document, Point, Result
from posexport.errors import PosexportError


def earlier(path: Path, suite: str, conditions: Conditions) -> Document | None:
    """The document that a run wrote to ``path``; None where there is none yet.

    Raises:
        PosexportError: it is no such document, or was found under other conditions.
    """
    if not path.is_file():
        return None
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except (msgspec.DecodeError, OSError) as err:
        raise PosexportError(f"{path} is no document of posexport bench: {err}; choose another name") from err
    here = machine()
    then_and_now = {
        "suite": (document.suite, suite),
        "threads": (document.threads, conditions.threads),
        "provider": (document.provider, conditions.provider),
        "rounds": (document.rounds, conditions.rounds),
        "machine": (f"{document.machine.cpu}, {document.machine.cores} cores", f"{here.cpu}, {here.cores} cores"),
        "code": ((document.code or "unknown")[:12], code()[:12]),
    }
    for name, (old, new) in then_and_now.items():
        if old != new:
            raise PosexportError(
                f"{path} cannot be gone on with: {name} {old} there, {new} here; give --force without --resume"
            )
    return document


def known(document: Document | None, model: str, point: Point, candidates: Sequence[str]) -> Result | None:
    """What ``document`` has on these candidates at a point, if that is valid and all of them worked."""
    for result in document.results if document else []:
        same = result.model == model and result.point == point
        if same and result.valid and [figure.candidate for figure in result.figures] == list(candidates):
            return result if all(figure.failed is None for figure in result.figures) else None
    return None
