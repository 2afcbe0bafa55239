"""An extension of griffe (mkdocs.yml), which reads the API without running it: signatures that decorators make.

The parameters of `posexport.convert` and others are the fields of a record, and so are their descriptions
(posexport/base/options/option.py): both are known only once the module is imported.
"""

import importlib
import inspect
from typing import Any

import griffe


class Signatures(griffe.Extension):
    """Gives functions under ``@taking(...)`` the signature and the docstring of the imported one."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called by griffe for every function that it has read."""
        if not any(str(decorator.value).startswith("taking(") for decorator in func.decorators):
            return
        real = getattr(importlib.import_module(func.module.path), func.name)
        if func.docstring is not None:
            func.docstring.value = inspect.getdoc(real) or ""
        func.parameters = griffe.Parameters(*map(_parameter, inspect.signature(real).parameters.values()))


def _parameter(parameter: inspect.Parameter) -> griffe.Parameter:
    annotation, default = parameter.annotation, parameter.default
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return griffe.Parameter(
        parameter.name,
        annotation=shown.replace("collections.abc.", "").replace("typing.", ""),
        kind=griffe.ParameterKind(parameter.kind.description),
        default=None if default is inspect.Parameter.empty else repr(default),
    )
