"""Self-contained HTML pages: jinja2 templates in this folder."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> bytes:
    """A page as a file's bytes; text in ``values`` is escaped, unless a template says that it is markup."""
    return _environment().get_template(template).render(values).encode()


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(autoescape=True, undefined=StrictUndefined, loader=PackageLoader("posexport.inspect.pages", ""))
