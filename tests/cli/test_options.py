"""One list of options: a field of the record is on the command line, in Python's signature and check, and recorded."""

import ast
import inspect
from typing import Annotated, Any, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner

import posexport
from posexport.base.options import option
from posexport.base.options.option import GRAPH, Option, describe, options_in, taking
from posexport.base.options.recipe import Recipe
from posexport.cli import convert as convert_command
from posexport.cli import of_record
from posexport.cli.command import Command
from posexport.cli.of_record import all_of, groups
from posexport.conversion import manifest
from posexport.conversion.options import GROUPS, ConvertOptions
from posexport.errors import PosexportError
from posexport.sources import builtin

SHADE = Annotated[Literal["light", "dark"], Option(group=GRAPH, help="How dark the graph is, as --target wants it.")]
#: the records as they were with one option more, which decides what is written
WiderRecipe = msgspec.defstruct(
    "WiderRecipe", [("shade", SHADE, "light")], bases=(Recipe,), frozen=True, kw_only=True, forbid_unknown_fields=True
)


class Wider(ConvertOptions, frozen=True, kw_only=True):
    shade: SHADE = "light"


def command(heard: list[dict[str, Any]]) -> click.Command:
    @click.command("convert", cls=Command, groups=groups(Wider, GROUPS, {}))
    @all_of(Wider)
    def convert(**choices: Any) -> None:
        heard.append(choices)

    return convert


def test_a_field_is_an_option_of_the_command_line() -> None:
    heard: list[dict[str, Any]] = []
    run = CliRunner()
    assert run.invoke(command(heard), ["--shade", "dark"]).exit_code == 0
    assert run.invoke(command(heard), []).exit_code == 0
    assert [each["shade"] for each in heard] == ["dark", "light"]
    text = run.invoke(command(heard), ["--help"]).output
    graph = text[text.index("Graph:") : text.index("Precision:")]
    assert "--shade [light|dark]" in graph
    assert "[default: light]" in graph
    assert "did you mean --shade?" in run.invoke(command(heard), ["--shde", "dark"]).output
    assert run.invoke(command(heard), ["--shade", "grey"]).exit_code == 2


def test_a_field_is_an_argument_in_python_and_is_checked() -> None:
    class Call(Wider, frozen=True):
        source: str
        output: str

    @taking(Call)
    def convert(asked: Call) -> str:
        """options: OPTIONS"""
        return asked.by_precision()[0].shade

    describe(convert, Call, Wider, GROUPS)
    assert convert("a", output="b", shade="dark") == "dark"
    parameter = inspect.signature(convert).parameters["shade"]
    assert (parameter.default, parameter.annotation) == ("light", Literal["light", "dark"])
    assert "shade: How dark the graph is, as ``target`` wants it." in (convert.__doc__ or "")
    with pytest.raises(PosexportError, match="shade must be one of light, dark, got 'drak'; did you mean dark"):
        convert("a", "b", shade="drak")  # type: ignore[arg-type]


def test_a_field_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    source = builtin.builtin_source("encoder-nope", task=None, settings_given=())
    monkeypatch.setattr(manifest, "Recipe", WiderRecipe)
    (options,) = Wider(shade="dark", settings={"layers": 1}).by_precision()
    recipe = manifest.recipe_of(source, options, 18)
    said = msgspec.json.decode(msgspec.json.encode(recipe))
    assert (said["shade"], said["opset"], said["settings"]) == ("dark", 18, {"layers": "1"})
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=WiderRecipe) == recipe


def test_what_is_recorded_is_an_option_of_convert() -> None:
    """So that ``convert(source, output, **recipe)`` is the same again, but for the texts, of which there is a hash."""
    assert set(Recipe.__struct_fields__) <= set(options_in(ConvertOptions))
    source = builtin.builtin_source("encoder-nope", task=None, settings_given=("layers=1",))
    first = manifest.recipe_of(source, ConvertOptions(settings=["layers=1"], precision=("int8",)).by_precision()[0], 18)
    (again,) = ConvertOptions(**msgspec.to_builtins(first)).by_precision()
    assert manifest.recipe_of(source, again, 18) == first


@pytest.mark.parametrize(
    "thing", [convert_command, of_record, option, manifest.recipe_of], ids=lambda each: each.__name__
)
def test_nothing_between_the_record_and_its_use_names_an_option(thing: Any) -> None:
    """An option more is the record and the place that uses it: what lies between takes them all from the record."""
    tree = ast.parse(inspect.getsource(thing))
    words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword | ast.arg) and node.arg}
    words |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    # recorded in another form than they are asked for
    resolved = {"task", "settings", "opset", "calibrate", "drop_weights", "outputs", "adapters"}
    resolved |= {"static_sizes", "int32", "inline", "input", "first_output", "cache_precision", "adapter_format"}
    allowed = resolved if thing is manifest.recipe_of else {"progress", "remark"}
    assert words & set(options_in(ConvertOptions)) <= allowed


def test_help_and_docstring_have_every_option() -> None:
    text = posexport.convert.__doc__ or ""
    parameters = inspect.signature(posexport.convert).parameters
    assert [*parameters][:2] == ["source", "output"]
    assert {*parameters} == {"source", "output", *options_in(ConvertOptions)}
    for name, listed in options_in(ConvertOptions).items():
        assert f"\n    {name}: " in text, "indented as in Python 3.13, which strips docstrings"
        assert "--" not in (listed.about.python or ""), "an option of the command line in words for Python"
        assert listed.about.group in ("", *GROUPS)
        assert listed.about.help or listed.about.python
