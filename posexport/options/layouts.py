"""Layouts of a bundle's directory by name, for ``--layout``."""

from typing import TYPE_CHECKING

from posexport.options.suggest import check_choice
from posexport.registry import Registry

if TYPE_CHECKING:
    from posexport.export.layout import Layout

#: a package adds one by an entry point of the group ``posexport.layouts``
LAYOUTS: "Registry[Layout]" = Registry(
    "layouts",
    "posexport.export.layout:Layout",
    {
        "bundle": "posexport.export.layout:BUNDLE",
        "genai": "posexport.serve.layouts.genai:GENAI",
        "optimum": "posexport.serve.layouts.optimum:OPTIMUM",
        "sentence-transformers": "posexport.serve.layouts.sentence_transformers:SENTENCE_TRANSFORMERS",
        "transformers.js": "posexport.serve.layouts.transformers_js:TRANSFORMERS_JS",
    },
)


def layout_names() -> tuple[str, ...]:
    """The values of ``--layout``, with names of installed packages."""
    return LAYOUTS.names


def layout_named(name: str) -> "Layout":
    """The layout that users call ``name``; PosexportError lists the known ones."""
    check_choice("layout", name, LAYOUTS.names)
    return LAYOUTS[name]
