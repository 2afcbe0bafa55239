"""Schemas of functions are those of transformers' ``get_json_schema``, to the order of their keys."""

# mypy: disable-error-code="no-untyped-def, empty-body, type-arg"

import enum
import json
from collections.abc import Callable
from typing import Any, Literal, Optional, Union

import pytest
import torch
from PIL import Image

from posexport.errors import PosexportError
from posexport.run.tool_schemas import as_schemas, schema_of


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = 1


def weather(place: str, unit: Literal["celsius", "fahrenheit"] = "celsius", days: int | None = None) -> list[float]:
    """Get the weather.

    In two paragraphs.

    Args:
        place (str): Where, such as "Paris, France".
            It goes on: here.
        unit: The unit (choices: ["celsius", " fahrenheit"])

        days: How many days

    Returns:
        The temperatures, for each
        day.

    Raises:
        ValueError: never
    """


def types(
    a: int,
    b: Optional[str],  # noqa: UP045
    c: Union[int, float, bool],  # noqa: UP007
    d: list[str] | None,
    e: tuple[int, str],
    f: dict[str, list[int]],
    g: Any,
    h: list,
    i: Literal[1, "x", None] | int,
    j: Unit,
    k: dict | tuple | list,
    image: Image.Image,
    audio: torch.Tensor,
    m: "str" = "",
):
    """All types.

    Args:
        a: A
        b: B
        c: C
        d: D
        e: E
        f: F
        g: G
        h: H
        i: I
        j: J
        k: K
        image: a picture
        audio: a sound
        m: M
    """


def nothing() -> None:
    """Without arguments."""


def custom() -> Callable[[], int]:
    """A type that has no schema is returned."""


class Holder:
    def method(self, x: float) -> str:
        """Of an object.

        Args:
            x: a number
        Returns:
            a text
        """

    @classmethod
    def of_class(cls, x: float):
        """Of a class.

        Args:
            x: a number
        """


FUNCTIONS = [weather, types, nothing, custom, Holder().method, Holder.method, Holder.of_class]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__qualname__)
def test_the_schema_is_transformers(function: Callable[..., Any]) -> None:
    from transformers.utils import get_json_schema

    assert json.dumps(schema_of(function)) == json.dumps(get_json_schema(function))


def untyped(x):
    """One.

    Args:
        x: a number
    """


def undescribed(x: int):
    """One."""


def bare(x: int): ...


def of_a_class(x: Holder):
    """One.

    Args:
        x: an object
    """


def variadic(x: tuple[int, ...]):
    """One.

    Args:
        x: numbers
    """


def choosing(x: str):
    """One.

    Args:
        x: a text (choices: [a, b])
    """


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (untyped, "its argument x has no type hint"),
        (undescribed, "no description of x under Args:"),
        (bare, "no docstring"),
        (of_a_class, "give a basic type, an Enum"),
        (variadic, r"give list\[...\] for several values"),
        (choosing, "are not a JSON list"),
    ],
)
def test_what_has_no_schema_there_has_none_here(tool: Callable[..., Any], says: str) -> None:
    from transformers.utils import get_json_schema

    with pytest.raises(Exception):  # noqa: B017, PT011  # of several classes
        get_json_schema(tool)
    with pytest.raises(PosexportError, match=f"the tool {tool.__name__} has no JSON schema: .*{says}"):
        schema_of(tool)


def test_tools() -> None:
    assert as_schemas(None) is None
    assert as_schemas(({"type": "function"}, nothing)) == [{"type": "function"}, schema_of(nothing)]
    for tools, says in ((5, "must be a list of functions"), ([5], "a tool must be a function or a JSON schema")):
        with pytest.raises(PosexportError, match=says):
            as_schemas(tools)  # type: ignore[arg-type]
