"""What has been found so far: one JSON file, written after every case, by which an ended run goes on."""

import datetime
import json
from pathlib import Path
from typing import Any

from machine import commit, device, versions
from part import Row


class State:
    """Rows by part and case, in ``path``; ``older``: a file of an earlier run, read where ``path`` is not there.

    ``anew``: forget all of it, ``again``: what failed.
    """

    def __init__(self, path: Path, older: Path | None = None, *, anew: bool = False, again: bool = False) -> None:
        self.path = path
        known = next((each for each in (path, older) if each is not None and each.is_file()), None)
        self.parts: dict[str, dict[str, Row]] = {}
        if known is not None and not anew:
            self.parts = json.loads(known.read_bytes())["parts"]
        if again:
            kept = ({c: row for c, row in rows.items() if row["passed"]} for rows in self.parts.values())
            self.parts = dict(zip(self.parts, kept, strict=True))
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        about = {"date": today, "device": device(), "versions": versions()}
        self._about: dict[str, Any] = about

    def add(self, part: str, case: str, row: Row) -> None:
        """A row, which is in the file at once."""
        self.parts.setdefault(part, {})[case] = {**row, "commit": commit()}
        self.write()

    def missing(self, part: str, cases: list[str]) -> list[str]:
        """Those that have no row."""
        return [case for case in cases if case not in self.parts.get(part, {})]

    def failed(self) -> list[str]:
        """``part: case``, of all rows that did not pass."""
        rows = ((part, case, row) for part, cases in self.parts.items() for case, row in cases.items())
        return [f"{part}: {case}" for part, case, row in rows if not row["passed"]]

    def write(self) -> None:
        """All of it, in one step: a run that is killed leaves the file of the row before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        parts = ",\n".join(f"{json.dumps(name)}: {_lines(rows)}" for name, rows in self.parts.items())
        about = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self._about.items())
        beside.write_text(f'{{{about}, "parts": {{\n{parts}\n}}}}\n')
        beside.replace(self.path)


def _lines(rows: dict[str, Row]) -> str:
    """One row a line, so that changes can be read; what is not finite as null, which JSON has no number for."""
    lines = (f" {json.dumps(case)}: {json.dumps(_finite(row))}" for case, row in rows.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
