"""Loads a source and applies the options that change it: the way to the source of `convert` and of `verify`."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from posexport.options.recipe import Recipe
from posexport.sources.kv_cache import with_kv_cache
from posexport.sources.length_limit import with_limit
from posexport.sources.load import LoadOptions, load_source
from posexport.sources.registry import opener_of
from posexport.sources.source import Source
from posexport.tokenizer.byte_pair import with_tokenizer


def prepare(
    argument: str | nn.Module, options: LoadOptions, recipe: Recipe | None = None, tokenizer: Path | None = None
) -> Source:
    """The source called ``argument`` with the limit, the KV cache and the rotation of keys of ``recipe``.

    ``tokenizer``: a tokenizer.json for a source that has none.

    Raises:
        PosexportError: the source cannot be loaded, or an option does not fit it.
    """
    source = load_source(argument, options)
    if recipe is not None:
        source = with_limit(source, recipe.beyond, recipe.max_length)
        source = with_kv_cache(source, recipe.cache, recipe.rotation)
    if tokenizer is not None:
        source = with_tokenizer(source, tokenizer)
    return source


def recorded_options(
    record: dict[str, Any], options: LoadOptions, argument: str | nn.Module, *, kind: str, name: str
) -> LoadOptions:
    """``options`` for loading ``argument``, completed by the recorded options of a bundle's source.

    An option that the user states counts, False too. ``kind`` and ``name`` describe the recorded source: settings are
    reused for the same built-in model only, the task for the same kind of source.
    """
    known = {f.name: record[f.name] for f in fields(LoadOptions) if f.name in record}
    known["settings"] = tuple(f"{key}={value}" for key, value in known.get("settings", {}).items())
    if kind not in opener_of(argument).kinds or (kind == "builtin" and argument != name):
        known = {key: value for key, value in known.items() if key not in ("task", "settings")}
    return replace(options, **{key: value for key, value in known.items() if getattr(options, key) in (None, ())})
