"""Shell completion of models, bundles, encodings, tasks and settings. Imports no torch."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
MANIFEST = "posexport.json"


def names(kind: str, first: Sequence[str] = ()) -> Complete:
    """Completes ``first`` and the names that ``posexport list KIND`` shows."""

    def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from posexport.catalogue.stored import names as all_names

        return _items([*first, *all_names(kind)], incomplete)

    return complete


def sources(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from posexport.catalogue.stored import names as all_names

    paths = _paths(incomplete, lambda path: path.is_dir() or path.suffix == ".py")
    return [*_items(all_names("models"), incomplete), *paths]


def bundles(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bundles; without a match, directories that may contain one."""
    directories = _paths(incomplete, lambda path: (path / MANIFEST).is_file())
    return directories or _paths(incomplete, Path.is_dir)


def bundles_or_models(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bundles and .onnx files; without a match, directories that may contain one."""
    onnx = _paths(incomplete, lambda path: path.suffix == ".onnx")
    return onnx + bundles(ctx, parameter, incomplete)


def encodings_or_bundles(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return names("encodings")(ctx, parameter, incomplete) + bundles(ctx, parameter, incomplete)


def settings(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys of ``--set`` for the model or encoding named earlier on the line, or for all."""
    from posexport.catalogue.stored import catalogue

    named = {value for value in ctx.params.values() if isinstance(value, str)}
    rows = [row for kind in ("models", "encodings") for row in catalogue(kind)]
    keys = dict.fromkeys(key for row in rows if row["name"] in named for key in row.get("settings", ()))
    keys = keys or dict.fromkeys(key for row in rows for key in row.get("settings", ()))
    return _items([f"{key}=" for key in keys], incomplete)


def words(kind: str, first: Sequence[str] = ()) -> Complete:
    """Completes keys of settings, or names of a kind after the words ``first``."""
    return settings if kind == "settings" else names(kind, first)


def _items(known: Sequence[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def _paths(incomplete: str, accept: Callable[[Path], bool]) -> list[CompletionItem]:
    folder, _, start = incomplete.rpartition("/")
    parent = Path(f"{folder}/") if "/" in incomplete else Path()
    try:
        entries = sorted(path for path in parent.iterdir() if path.name.startswith(start))
    except OSError:
        return []
    shown = [path for path in entries if accept(path) and (start or not path.name.startswith("."))]
    prefix = incomplete[: len(incomplete) - len(start)]
    return [CompletionItem(f"{prefix}{path.name}") for path in shown]
