"""What ``posexport list`` shows, read off the registries."""


def catalogue(kind: str) -> list[dict[str, str]]:
    """Rows of ``name`` and ``what`` (and more, per kind) for one of `posexport.cli.list.KINDS`."""
    return {
        "encodings": _encodings,
        "models": _models,
        "ops": _ops,
        "providers": _providers,
        "tasks": _tasks,
        "families": _families,
    }[kind]()


def _encodings() -> list[dict[str, str]]:
    import posexport.encodings  # noqa: F401  # fills the registry
    from posexport.encodings.base import ENCODINGS

    return [{"name": e.name, "what": e.summary, "source": e.source} for e in ENCODINGS.values()]


def _models() -> list[dict[str, str]]:
    from posexport.sources import builtin

    return [{"name": name, "what": "an encoder of the BERT family, seeded random weights"} for name in builtin.names()]


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
    from posexport.sources.builtin import TASKS

    return [{"name": name, "what": what} for name, what in TASKS.items()]


def _families() -> list[dict[str, str]]:
    from posexport.sources.huggingface.families import FAMILIES

    return [{"name": name, "what": "Hugging Face checkpoint directory"} for name in sorted(FAMILIES)]
