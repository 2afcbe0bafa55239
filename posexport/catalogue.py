"""What ``posexport list`` shows, read off the registries."""

from collections.abc import Mapping
from typing import Any

#: sizes of the model that the limits of encodings are told for
_SIZES = {"hidden": 60, "heads": 5, "head_size": 12, "max_positions": 128}


def catalogue(kind: str) -> list[dict[str, Any]]:
    """Rows of ``name`` and ``what`` (and more, per kind) for one of `posexport.cli.list.KINDS`."""
    return {
        "encodings": _encodings,
        "models": _models,
        "ops": _ops,
        "providers": _providers,
        "tasks": _tasks,
        "families": _families,
    }[kind]()


def _encodings() -> list[dict[str, Any]]:
    from dataclasses import asdict

    import posexport.encodings  # noqa: F401  # fills the registry
    from posexport.encodings.base import ENCODINGS
    from posexport.encodings.describe import describe
    from posexport.sources.definitions import KINDS

    def row(name: str) -> Mapping[str, Any]:
        entry = ENCODINGS[name]
        models = [f"{kind.name}-{name}" for kind in KINDS if kind.takes(entry)]
        return {"name": name, "what": entry.summary, "source": entry.source, "models": models} | asdict(
            describe(entry, _SIZES)
        )

    return [dict(row(name)) for name in ENCODINGS]


def _models() -> list[dict[str, str]]:
    from posexport.sources import builtin

    return [
        {"name": name, "what": f"{kind.what}, seeded random weights"} for name, (kind, _) in builtin.models().items()
    ]


def _ops() -> list[dict[str, str]]:
    import posexport.ops  # noqa: F401  # fills the registry
    from posexport.ops.base import OPERATORS

    rows = []
    for operator in OPERATORS.values():
        doc = (getattr(__import__(operator.oracle.__module__, fromlist=["_"]), "__doc__", "") or "").strip()
        rows.append({"name": operator.name, "what": doc.splitlines()[0]})
    return rows


def _providers() -> list[dict[str, str]]:
    from posexport.errors import PosexportError
    from posexport.runtime.providers import PROVIDERS, check_loads

    rows = []
    for name in PROVIDERS:
        try:
            check_loads(name)
            rows.append({"name": name, "what": "loads"})
        except PosexportError as err:
            rows.append({"name": name, "what": str(err)})
    return rows


def _tasks() -> list[dict[str, str]]:
    from posexport.sources.definitions import KINDS

    found = {name: what for kind in KINDS for name, what in kind.tasks.items()}
    return [{"name": name, "what": what} for name, what in found.items()]


def _families() -> list[dict[str, Any]]:
    from posexport.sources.huggingface.families import FAMILIES

    def row(name: str) -> dict[str, Any]:
        tasks = sorted(set(FAMILIES[name].architectures.values()))
        return {"name": name, "what": f"Hugging Face checkpoint directory: {', '.join(tasks)}", "tasks": tasks}

    return [row(name) for name in sorted(FAMILIES)]
