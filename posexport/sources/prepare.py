"""From a name and options to the source that is exported, and that a bundle is compared with: the one way to both."""

from dataclasses import fields, replace
from typing import Any

from torch import nn

from posexport.options.recipe import Recipe
from posexport.sources.cached import cached
from posexport.sources.extend import extend
from posexport.sources.load import LoadOptions, load_source
from posexport.sources.registry import opener_of
from posexport.sources.source import Source


def prepare(
    argument: str | nn.Module,
    options: LoadOptions,
    recipe: Recipe | None = None,
) -> Source:
    """The source called ``argument`` with its limit, its KV cache and its rotation of keys as ``recipe`` says.

    Raises:
        PosexportError: what is wrong with the source, or which option does not fit it, in one sentence.
    """
    source = load_source(argument, options)
    if recipe is None:
        return source
    return cached(extend(source, recipe.beyond, recipe.max_length), recipe.cache, recipe.rotation)


def recorded_options(
    record: dict[str, Any], options: LoadOptions, argument: str | nn.Module, *, kind: str, name: str
) -> LoadOptions:
    """``options`` for loading ``argument``, completed by the recorded options of a bundle's source.

    An option that the user states counts, False too. ``kind`` and ``name`` describe the recorded source: settings are
    taken over for the same built-in model only, the task for the same kind of source.
    """
    known = {f.name: record[f.name] for f in fields(LoadOptions) if f.name in record}
    known["settings"] = tuple(f"{key}={value}" for key, value in known.get("settings", {}).items())
    if kind not in opener_of(argument).kinds or (kind == "builtin" and argument != name):
        known = {key: value for key, value in known.items() if key not in ("task", "settings")}
    return replace(options, **{key: value for key, value in known.items() if getattr(options, key) in (None, ())})
