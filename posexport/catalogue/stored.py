"""What ``posexport list`` shows. Imports no torch: most of it is read from a file that ``ci/catalogue`` writes.

The file is a copy of `posexport.catalogue.registries`. A process that has imported the registries gets them in its
place, so that encodings which it registered itself are listed too.
"""

import json
import sys
from functools import cache
from importlib.resources import files
from typing import Any

from posexport.base.registry import added_by_packages

FILE = "catalogue.json"
#: kinds that depend on the machine, and are in no file
_OF_THIS_MACHINE = ("providers",)
#: where encodings are registered
_REGISTRY = "posexport.encodings.encoding"


def catalogue(kind: str) -> list[dict[str, Any]]:
    """Rows of ``name`` and ``what`` (and more, by kind) for one of `kinds`.

    What an installed package adds has its ``package`` in place of more, until it is loaded.
    """
    if kind == "providers":
        return _providers()
    rows: list[dict[str, Any]]
    if _REGISTRY in sys.modules:
        from posexport.catalogue.registries import TABLES

        rows = TABLES[kind]()
    else:
        rows = [dict(entry) for entry in stored()[kind]]
    known = {entry["name"] for entry in rows}
    added = {name: package for name, package in added_by_packages(kind).items() if name not in known}
    return rows + [
        {"name": name, "what": f"from the package {package}", "package": package} for name, package in added.items()
    ]


def names(kind: str) -> list[str]:
    """The names of a kind, without what costs time to find out."""
    return [entry["name"] for entry in catalogue(kind)]


def kinds() -> list[str]:
    return [*stored(), *_OF_THIS_MACHINE]


@cache
def stored() -> dict[str, list[dict[str, Any]]]:
    """Reads the file: rows by kind."""
    rows: dict[str, list[dict[str, Any]]] = json.loads(files("posexport.catalogue").joinpath(FILE).read_text("utf-8"))
    return rows


def as_text() -> str:
    """What the file holds, by the registries: one row a line, so that changes can be read."""
    from posexport.catalogue.registries import TABLES

    def table(kind: str) -> str:
        rows = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in TABLES[kind]())
        return f' "{kind}": [\n{rows}\n ]'

    return "{\n" + ",\n".join(map(table, TABLES)) + "\n}\n"


def _providers() -> list[dict[str, Any]]:
    from posexport.base.targets.providers import PROVIDERS
    from posexport.errors import PosexportError
    from posexport.run.providers import check_loads

    rows = []
    for name in PROVIDERS.names:
        try:
            check_loads(name)
            rows.append({"name": name, "what": "loads"})
        except PosexportError as err:
            rows.append({"name": name, "what": str(err)})
    return rows
