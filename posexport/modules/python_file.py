"""``path/to/file.py:factory``: a user's module, made by a function in a Python file.

The factory takes no arguments and returns ``(module, inputs)``, ``(module, inputs, axes)`` or the module alone:
``inputs`` maps the names of ``forward``'s arguments to example tensors, ``axes`` maps an input's name to its axes'
names, ``{"x": ["batch_size", "sequence_length", 16]}``. A tuple of tensors takes the names of ``forward``'s parameters.
A module with an attribute ``inputs`` (a list of `InputSpec`, as posexport's definitions have) needs neither, nor does a
model of transformers, which is read as its checkpoint would be.

The file is executed: it is run only because the user named it.
"""

import functools
import importlib.util
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from posexport.base.spec import InputSpec
from posexport.base.system.user_code import is_external, line_of_error, quoted, raised
from posexport.errors import PosexportError
from posexport.modules.live_module import NOTHING_SHOWN, source_of_module
from posexport.modules.with_cache import with_cache
from posexport.sources.load import load_source
from posexport.sources.load_options import LoadOptions, Shown
from posexport.sources.source import Source
from posexport.sources.transformers_model import called, is_transformers_model, saved


def python_source(
    argument: str,
    known: Sequence[InputSpec] = (),
    task: str | None = None,
    shown: Shown = NOTHING_SHOWN,
) -> Source:
    """Runs the file, calls the factory, and finds out the module's inputs and outputs.

    ``known``: the inputs of a bundle to compare with, for a factory that returns the module alone. ``task``: the
    task of a transformers model. ``shown``: see `source_of_module`.

    Raises:
        PosexportError: the file or the factory does not exist, or the factory failed or returned something else.
    """
    path_text, _, factory_name = argument.rpartition(":")
    path = Path(path_text)
    result = _call(path, factory_name)
    parts = result if isinstance(result, tuple) else (result,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise PosexportError(
            f"{argument} must return a torch module, (module, inputs) or (module, inputs, axes), "
            f"got {type(result).__name__}"
        )
    label = f"{path.name}:{factory_name}"
    if len(parts) == 1 and is_transformers_model(parts[0]):
        return _checkpoint(argument, parts[0], task, label)
    code = path.read_bytes()
    source = source_of_module(argument, *parts, label=label, fingerprint=code, known=known, shown=shown)
    return with_cache(source, task)


def _checkpoint(argument: str, model: nn.Module, task: str | None, label: str) -> Source:
    """The source of a model of transformers, by way of a checkpoint."""
    folder = saved(model)
    with called(argument, folder.name):
        source = load_source(folder.name, LoadOptions(task=task, name=argument, label=label))
    weakref.finalize(source.module, folder.cleanup)  # weights are read from its files
    return source


def _call(path: Path, factory_name: str) -> Any:
    """What the factory returns, with errors of the file and the factory as one sentence."""
    # import the file, with its folder on the path
    if not path.is_file():
        raise PosexportError(f"no such Python file: {path}")
    spec = importlib.util.spec_from_file_location(f"posexport_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PosexportError(f"{path} cannot be run as a Python file: its name must end in .py")
    namespace = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        sys.modules[spec.name] = namespace  # dataclasses and pickling look their module up
        spec.loader.exec_module(namespace)
        # check the factory, and call it
        factory = getattr(namespace, factory_name, None)
        if isinstance(factory, nn.Module):
            raise PosexportError(
                f"{path}:{factory_name} is a module, not a factory: write a function that returns (model, inputs) and "
                "name that"
            )
        if not callable(factory):
            names = ", ".join(_defined(namespace)) or "none"
            raise PosexportError(f"{path} has no factory {factory_name!r}; it defines {names}")
        if needed := _needed(factory):
            raise PosexportError(
                f"{path}:{factory_name} is called without arguments, and needs {', '.join(needed)}; give them defaults"
            )
        return factory()
    except BaseException as err:  # a file that exits must not end the command as if all were well
        if isinstance(err, PosexportError) or is_external(err):
            raise
        line = line_of_error(err)
        said = raised(err) if isinstance(err, SystemExit) and not err.args else f"{type(err).__name__}: {quoted(err)}"
        raise PosexportError(f"{path}:{factory_name} failed: {said}" + (f" ({line})" if line else "")) from err
    finally:
        sys.path.remove(str(path.parent.resolve()))


def _defined(namespace: ModuleType) -> list[str]:
    """Names of the functions and classes that a file defines, without those that it imports."""
    callables = {name: value for name, value in vars(namespace).items() if callable(value) and name[0] != "_"}
    # a partial is an object of functools
    return [
        name
        for name, value in callables.items()
        if isinstance(value, functools.partial) or getattr(value, "__module__", None) == namespace.__name__
    ]


def _needed(factory: Callable[..., Any]) -> list[str]:
    """The parameters without a default; none where the signature is not known."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
