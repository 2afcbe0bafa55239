"""What ``posexport list`` shows, read off the registries. Needs torch; `posexport.catalogue.stored` does not.

Every row has ``name`` and ``what``, and more for some kinds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from posexport.base.tasks.registry import TASKS
from posexport.checkpoints.families.registry import FAMILIES
from posexport.encodings.build import describe, settings
from posexport.encodings.encoding import ENCODINGS, Entry
from posexport.graph.lowering import plan
from posexport.graph.ops.operator import OPERATORS
from posexport.inspect.audit.registry import RULES
from posexport.sources import builtin
from posexport.sources.definitions import KINDS
from posexport.through.library import TESTED
from posexport.through.types import PROVEN, REFUSED

#: sizes of the model for which the limits of encodings are shown
_SIZES = {"hidden": 60, "heads": 5, "head_size": 12, "max_positions": 128}


def encodings() -> list[dict[str, Any]]:
    """Position encodings: what each does, where it acts, its limits in tokens, its settings, its built-in models."""

    def row(entry: Entry) -> dict[str, Any]:
        models = [f"{kind.name}-{entry.name}" for kind in KINDS if kind.takes(entry)]
        summary = {"name": entry.name, "what": entry.summary, "source": entry.source, "models": models}
        return summary | asdict(describe(entry, _SIZES))

    return [row(entry) for entry in ENCODINGS.values()]


def models() -> list[dict[str, Any]]:
    """Built-in models; ``settings``: what ``--set`` takes, settings of the encoding first."""
    return [
        {
            "name": name,
            "what": f"{kind.what}, seeded random weights",
            "settings": builtin.setting_names(kind, settings(ENCODINGS[encoding])),
        }
        for name, (kind, encoding) in builtin.models().items()
    ]


def ops() -> list[dict[str, str]]:
    rows = []
    for operator in OPERATORS.values():
        doc = (getattr(__import__(operator.oracle.__module__, fromlist=["_"]), "__doc__", "") or "").strip()
        rows.append({"name": operator.name, "what": doc.splitlines()[0]})
    return rows


def tasks() -> list[dict[str, str]]:
    """The values that ``--task`` accepts."""
    return [{"name": task.name, "what": task.what, "outputs": ", ".join(task.outputs)} for task in TASKS.values()]


def families() -> list[dict[str, Any]]:
    """Families of Hugging Face checkpoints by ``model_type``, grouped by their tasks.

    ``how``: ``defined`` by posexport, converted ``through transformers``, or ``refused``, for the reason in ``what``.
    """

    def row(name: str, how: str, what: str, tasks: Iterable[str] = ()) -> dict[str, Any]:
        of = sorted(set(tasks))
        return {"name": name, "what": f"{what}{': ' if of else ''}{', '.join(of)}", "how": how, "tasks": of}

    through = f"Through transformers (tested with {TESTED}; types that are not listed are tried)"
    rows = [
        *(
            row(name, "defined", "Hugging Face checkpoint directory", FAMILIES[name].architectures.values())
            for name in FAMILIES.names
        ),
        *(row(name, "through transformers", through, [task]) for name, task in PROVEN.items()),
        *(row(name, "refused", f"Refused, {reason}") for name, reason in REFUSED.items()),
    ]
    order = ("defined", "through transformers", "refused")
    return sorted(rows, key=lambda row: (order.index(row["how"]), row["tasks"], row["what"], row["name"]))


def lowerings() -> list[dict[str, str]]:
    """The values of ``--lowering`` other than ``auto``."""
    rows: dict[str, str] = {}
    for family in plan.FAMILIES:
        for lowering in family.lowerings:
            module = __import__(type(lowering).__module__, fromlist=["_"])
            rows.setdefault(lowering.name, (module.__doc__ or "").splitlines()[0])
    return [{"name": name, "what": what} for name, what in rows.items()]


def rules() -> list[dict[str, str]]:
    """The rules of an audit by code."""
    named = {code: RULES[code] for code in sorted(RULES)}
    return [{"name": code, "what": f"{rule.name}: {rule.finds} ({rule.severity})"} for code, rule in named.items()]


#: by kind
TABLES: Mapping[str, Any] = {
    "encodings": encodings,
    "models": models,
    "ops": ops,
    "tasks": tasks,
    "families": families,
    "lowerings": lowerings,
    "rules": rules,
}
