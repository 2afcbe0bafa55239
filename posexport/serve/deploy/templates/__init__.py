"""Templates of the files that `posexport deploy` writes: a folder for each engine, ``.jinja`` files."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_SUFFIX, _PART = ".jinja", ".part"


def render(template: str, **values: object) -> str:
    """A file's text."""
    return _environment().get_template(template + _SUFFIX).render(values)


def names(engine: str) -> Iterator[str]:
    """The files of an engine's folder; what ends in ``.part`` is put in by code, not by its name."""
    for path in sorted((Path(__file__).parent / engine).glob(f"*{_SUFFIX}")):
        name = path.name.removesuffix(_SUFFIX)
        if not name.endswith(_PART):
            yield name


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        undefined=StrictUndefined,
        loader=PackageLoader("posexport.serve.deploy", "templates"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
