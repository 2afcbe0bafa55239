"""JSON schemas of Python functions for the tools of a chat template, equal to transformers 5.24's ``get_json_schema``.

Types come from the hints of arguments, descriptions from a docstring of Google's form; ``(choices: ["a", "b"])`` at the
end of a description is an enum.
"""

import enum
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from posexport.errors import PosexportError

Schema = dict[str, Any]
_SCALARS: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_CONTAINERS: dict[Any, str] = {list: "array", tuple: "array", dict: "object"}
#: classes of libraries that need not be installed
_NAMED = {("PIL.Image", "Image"): "image", ("torch", "Tensor"): "audio"}

_DESCRIPTION = re.compile(r"^(.*?)[\n\s]*(?:Args:|Returns:|Raises:|\Z)", re.DOTALL)
_ARGUMENTS = re.compile(r"\n\s*Args:\n(.*?)[\n\s]*(?:Returns:|Raises:|\Z)", re.DOTALL)
_RETURNS = re.compile(r"\n\s*Returns:\n\s*(.*?)[\n\s]*(?:Raises:|\Z)", re.DOTALL)
_NAME = r"\w+(?:[ \t]*\([^()\n]*\))?:"
#: an argument with its description: up to the next name that is not indented deeper
_ARGUMENT = re.compile(
    rf"(?:^|\n)(?P<indent>[ \t]*)(?P<name>\w+)(?:[ \t]*\([^()\n]*\))?:\s*(?P<text>.*?)\s*"
    rf"(?=\n(?!(?P=indent)[ \t])[ \t]*{_NAME}|\Z)",
    re.DOTALL,
)
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def as_schemas(tools: Iterable[Any] | None) -> list[Any] | None:
    """The schemas of tools: dictionaries as they are, and functions as `schema_of` makes them.

    Raises:
        PosexportError: a tool that is neither, or a function without a docstring, a type hint or a description.
    """
    if tools is None:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise PosexportError(f"tools must be a list of functions or JSON schemas, got {tools!r:.60}")
    return [tool if isinstance(tool, Mapping) else schema_of(tool) for tool in tools]


def schema_of(function: Callable[..., Any]) -> Schema:
    """The schema of a function; PosexportError if it lacks a docstring, a type hint or a description."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise PosexportError(f"a tool must be a function or a JSON schema (a dictionary), got {function!r:.60}")
    name, doc = function.__name__, (inspect.getdoc(function) or "").strip()
    if not doc:
        raise _refused(name, "it has no docstring")
    texts, arguments = _descriptions(doc), _arguments(function)
    for argument, schema in arguments.items():
        if argument not in texts:
            raise _refused(name, f"its docstring has no description of {argument} under Args:")
        text = texts[argument]
        if choices := _CHOICES.search(text):
            schema["enum"] = _listed(name, choices[1])
            text = text[: choices.start()].strip()
        schema["description"] = text
    parameters: Schema = {"type": "object", "properties": arguments}
    required = [
        argument
        for argument, parameter in _parameters(function).items()
        if parameter.default is inspect.Parameter.empty
    ]
    if required:
        parameters["required"] = required
    description = _DESCRIPTION.search(doc)
    described = description[1].strip() if description else None
    returned = _returned(function, doc)
    return {
        "type": "function",
        "function": {"name": name, "description": described, "parameters": parameters} | returned,
    }


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function, without the object of a method."""
    parameters = dict(inspect.signature(function).parameters)
    first = next(iter(parameters), None)
    if first in ("self", "cls") and parameters[first].annotation is inspect.Parameter.empty:
        del parameters[first]
    return parameters


def _arguments(function: Callable[..., Any]) -> dict[str, Schema]:
    parameters, hints = _parameters(function), _hints(function)
    if untyped := [name for name, parameter in parameters.items() if parameter.annotation is inspect.Parameter.empty]:
        raise _refused(function.__name__, f"its argument {untyped[0]} has no type hint")
    schemas = {}
    for name in parameters:
        try:
            schemas[name] = _type(hints[name])
        except _NoSchemaError as err:
            raise _refused(function.__name__, f"the type of its argument {name} ({hints[name]!r}) {err}") from None
    return schemas


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except Exception as err:  # a hint that is a text is evaluated
        raise _refused(function.__name__, f"its type hints cannot be read ({err})") from err


def _returned(function: Callable[..., Any], doc: str) -> Schema:
    """The entry ``return``; none for a type without a schema, which the model need not write."""
    hints = _hints(function)
    if "return" not in hints:
        return {}
    try:
        schema = _type(hints["return"])
    except _NoSchemaError:
        return {}
    text = _RETURNS.search(doc)
    return {"return": schema | ({"description": text[1]} if text else {})}


def _descriptions(doc: str) -> dict[str, str]:
    """The description of each argument in a docstring."""
    section = _ARGUMENTS.search(doc)
    lines = "\n".join(line for line in section[1].split("\n") if line.strip()) if section else ""
    matches = _ARGUMENT.finditer(lines)
    return {match["name"]: re.sub(r"\s*\n+\s*", " ", match["text"].strip()) for match in matches}


def _listed(name: str, choices: str) -> list[Any]:
    try:
        listed = json.loads(choices)
    except ValueError as err:
        raise _refused(name, f"its choices {choices:.60} are not a JSON list ({err})") from err
    return [choice.strip() if isinstance(choice, str) else choice for choice in listed]


class _NoSchemaError(Exception):
    """A type has no schema. The message is a predicate."""


def _type(hint: Any) -> Schema:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return _enum(args)
    if origin is tuple and (len(args) == 1 or ... in args):
        raise _NoSchemaError("has no schema: give list[...] for several values")
    if origin in _CONTAINERS:
        return {"type": _CONTAINERS[origin]} | _elements(origin, args)
    if origin is None and isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum([member.value for member in hint])
    if hint is Any:
        return {}
    known: dict[Any, str] = {**_SCALARS, **_CONTAINERS}
    place = (getattr(hint, "__module__", ""), getattr(hint, "__qualname__", ""))
    name = _NAMED.get(place) or (known.get(hint) if isinstance(hint, type) else None)
    if name is None:
        raise _NoSchemaError("has no schema: give a basic type, an Enum, Literal, list, tuple, dict, or a union")
    return {"type": name}


def _elements(origin: Any, args: Sequence[Any]) -> Schema:
    """The part of a container's schema that describes its elements."""
    if origin is list and args:
        return {"items": _type(args[0])}
    if origin is tuple and args:
        return {"prefixItems": [_type(element) for element in args]}
    return {"additionalProperties": _type(args[1])} if origin is dict and len(args) == 2 else {}


def _union(args: Sequence[Any]) -> Schema:
    members = [_type(member) for member in args if member is not type(None)]
    if len(members) == 1:
        schema = members[0]
    elif all(member.keys() == {"type"} and isinstance(member["type"], str) for member in members):
        names = sorted({member["type"] for member in members})
        schema = {"type": names[0] if len(names) == 1 else names}
    else:
        schema = {"anyOf": members}
    return schema | ({"nullable": True} if type(None) in args else {})


def _enum(values: Sequence[Any]) -> Schema:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise _NoSchemaError("has no values, or values that are no JSON scalars")
    names = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": list(values)}


def _refused(name: str, reason: str) -> PosexportError:
    return PosexportError(f"the tool {name} has no JSON schema: {reason}; mend it, or give the schema as a dictionary")
