"""Renders the templates of an engine's files (jinja2)."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

    from posexport.serve.deploy.engine import Engine

_SUFFIX, _PART = ".jinja", ".part"


def render(engine: "Engine", file: str, /, **values: object) -> str:
    """The text of the engine's template ``file``."""
    return _environment(engine.package).get_template(f"{engine.name}/{file}{_SUFFIX}").render(values)


def template_names(engine: "Engine") -> Iterator[str]:
    """The files in the engine's folder of templates, without those that end in ``.part``, which code renders."""
    folder = files(engine.package) / "templates" / engine.name
    for name in sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ():
        file = name.removesuffix(_SUFFIX)
        if file != name and not file.endswith(_PART):
            yield file


@cache
def _environment(package: str) -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        undefined=StrictUndefined,
        loader=PackageLoader(package, "templates"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
