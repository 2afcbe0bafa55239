"""What a source is loaded with: the options of ``posexport convert`` and of its Python form that concern it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from posexport.base.options.settings import named_folders, pairs

if TYPE_CHECKING:
    from posexport.base.options.recipe import DefinitionName
    from posexport.base.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a bundle, or a graph that failed, shows of a module's axes beside calls of the module.

    Attributes:
        steps: numbers that sizes are multiples of, where the module accepts other sizes too and a graph does not.
        fixed: axes of inputs, by number, that have one size in a graph.
        traced: sizes to trace at, beyond a branch of the module.
        least: sizes below which a module takes another branch than its graph.
        keeps_tables: the graph reads tables of earlier calls, and has their limits: one that makes them failed.
    """

    steps: Mapping[str, int] = field(default_factory=dict)
    fixed: frozenset[tuple[str, int]] = frozenset()
    traced: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    keeps_tables: bool = False


@dataclass(frozen=True, kw_only=True)
class Refused:
    """What sizes that a module refuses show of its axes: ``least`` and ``fixed`` of `Shown`, and a remark on each."""

    least: Mapping[str, int] = field(default_factory=dict)
    fixed: frozenset[tuple[str, int]] = frozenset()
    remarks: Mapping[str, str] = field(default_factory=dict)

    def added_to(self, shown: Shown) -> Shown:
        """``shown`` with what is known now."""
        return replace(shown, least={**shown.least, **self.least}, fixed=shown.fixed | self.fixed)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The options of a source; None: not stated by the user, so that a recorded recipe's value applies.

    ``settings``: the ``--set`` pairs.
    ``definition``: of a checkpoint, as in `posexport.base.options.recipe.Recipe`; None: as recorded, else ``paper``.
    ``drop_weights``: patterns of tensors of a checkpoint that are left out.
    ``adapters``: names and folders of LoRA adapters beside a checkpoint.
    ``name`` and ``label``: what the source of a checkpoint's folder is called, in place of its path and its type.
    ``example_inputs`` and ``axes`` describe the inputs of a module in memory (`posexport.modules.live_module`).
    ``bundle_inputs``: the inputs of a bundle to compare with, where the user gives no example.
    """

    task: str | None = None
    settings: tuple[str, ...] = ()
    allow_pickle: bool = False
    definition: "DefinitionName | None" = None
    drop_weights: tuple[str, ...] = ()
    adapters: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    label: str | None = None
    example_inputs: Any = None
    axes: Any = None
    bundle_inputs: Sequence["InputSpec"] = ()
    shown: Shown = field(default_factory=Shown)

    @classmethod
    def of(cls, options: object) -> "LoadOptions":
        """Selects the options of a source from a record that has more fields, for example a conversion's."""
        known = {field.name: getattr(options, field.name) for field in fields(cls) if hasattr(options, field.name)}
        known["drop_weights"] = tuple(known.get("drop_weights", ()))
        known["adapters"] = named_folders("--adapters", known.get("adapters"))
        return cls(**{**known, "settings": pairs(known["settings"])})
