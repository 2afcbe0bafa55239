"""The table ``[tool.posexport.audit]`` of pyproject.toml, which has defaults of options, and checks of codes."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from posexport.base.options.check import closest
from posexport.errors import PosexportError
from posexport.inspect.audit.finding import Severity

TABLE = "tool.posexport.audit"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The table ``[tool.posexport.audit]``: defaults of the command's options."""

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    fail_on: "Severity | Literal['never'] | None" = None
    provider: str | None = None


def settings_of(folder: Path) -> Settings:
    """The table of the nearest pyproject.toml of ``folder`` and its parents; PosexportError where it is no such."""
    for parent in (folder.resolve(), *folder.resolve().parents):
        path = parent / "pyproject.toml"
        if path.is_file():
            return _read(path)
    return Settings()


def _read(path: Path) -> Settings:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("posexport", {}).get("audit", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise PosexportError(f"{path} is no TOML file: {err}; repair it") from err
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as err:
        raise PosexportError(f"{path}, [{TABLE}]: {err}; posexport audit --help lists what it has") from err


def check_codes(codes: Sequence[str], known: Sequence[str], option: str) -> None:
    """Raises PosexportError where a code starts no rule's."""
    for code in codes:
        if not any(name.startswith(code) for name in known) or not code:
            match = closest(code, known)
            hint = f"did you mean {match}?" if match else "posexport list rules has them"
            raise PosexportError(f"{option} {code}: no rule's code starts with it; {hint}")
