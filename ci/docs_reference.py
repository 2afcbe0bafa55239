"""The reference pages of docs/: the command line from click's help, the Python API from signatures and docstrings."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
from layers import load_module, mermaid

from posexport.cli import group

ROOT = Path(__file__).parent.parent
_WIDTH = 100

#: what users import, in the order of the page: module, names
PUBLIC = {
    "posexport": (
        *("convert", "verify", "load", "list_encodings", "list_families"),
        *("Conversion", "Report", "Session", "GenerationConfig", "PosexportError"),
    ),
    "posexport.nn": ("Attention", "InputEncoding", "attend"),
    "posexport.testing": ("assert_parity",),
}
#: classes that users make themselves; others come from functions
_CONSTRUCTED = ("GenerationConfig", "Attention", "InputEncoding")
#: members of classes that are inherited, or that readers do not call
_HIDDEN = {"forward_hooks", "from_json"}


def commands() -> str:
    """``--help`` of every command."""
    size = {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
    root = click.Context(group, info_name="posexport", **size, **group.context_settings)
    return "\n\n".join(_help(command, context) for command, context in walk(group, root))


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """The command and all below it, each with a context that knows its full name."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is None or below.hidden:
                continue
            size = {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
            yield from walk(below, click.Context(below, info_name=name, parent=context, **size))


def _help(command: click.Command, context: click.Context) -> str:
    level = "##" if context.parent is None or context.parent.parent is None else "###"
    return f"{level} {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```"


def api() -> str:
    """Signature and docstring of everything in `PUBLIC`, of classes with their public methods and properties."""
    parts = []
    for module_name, names in PUBLIC.items():
        module = importlib.import_module(module_name)
        parts += [_entry(f"{module_name}.{name}", getattr(module, name), "##") for name in names]
    return "\n\n".join(parts)


def _entry(name: str, thing: object, level: str) -> str:
    short = name if name.count(".") == 1 or level == "##" else name.rpartition(".")[2]
    parts = [f"{level} {short}", *_signature(name.rpartition(".")[2], thing), _text(thing)]
    if isinstance(thing, type):
        if short.rpartition(".")[2] in _CONSTRUCTED and "__init__" in vars(thing):
            parts.append(_text(vars(thing)["__init__"]))
        parts += [_entry(f"{name}.{key}", member, "###") for key, member in _members(thing)]
    return "\n\n".join(part for part in parts if part)


def _members(thing: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties that the class itself, or the record that it extends, defines and documents."""
    records = [base for base in reversed(thing.__mro__[1:]) if issubclass(base, msgspec.Struct)]
    for key, member in [item for cls in (*records, thing) for item in vars(cls).items()]:
        plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        public = not key.startswith("_") and key not in _HIDDEN and bool(inspect.getdoc(plain))
        if public and (callable(plain) or isinstance(plain, property)):
            yield key, plain


def _signature(name: str, thing: object) -> list[str]:
    if isinstance(thing, property) or (isinstance(thing, type) and name not in _CONSTRUCTED):
        return []
    assert callable(thing)
    signature = inspect.signature(thing)
    parameters = [p.replace(annotation=_annotation(p)) for p in signature.parameters.values() if p.name != "self"]
    fresh = signature.replace(parameters=parameters, return_annotation=_plain(signature.return_annotation))
    if isinstance(thing, type):
        fresh = fresh.replace(return_annotation=inspect.Signature.empty)
    line = _quoted(f"{name}{fresh}")
    if len(line) > _WIDTH:
        inner = [_quoted(str(p)) for p in parameters]
        keyword = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
        if keyword is not None and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
            inner.insert(keyword, "*")
        answer = _quoted(f"{fresh.replace(parameters=[])}").removeprefix("()")
        line = f"{name}(\n    " + ",\n    ".join(inner) + f",\n){answer}"
    return [f"```text\n{line}\n```"]


class _Words:
    """An annotation that prints as the source has it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _annotation(parameter: inspect.Parameter) -> object:
    return _plain(parameter.annotation)


def _plain(annotation: object) -> object:
    """Without the names of modules."""
    if annotation is inspect.Signature.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Words(re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text))


def _quoted(text: str) -> str:
    return re.sub(r"<factory>", "...", text)


def _text(thing: object) -> str:
    """The docstring as Markdown: code in backticks, examples fenced, lists of fields as lists."""
    doc = inspect.getdoc(thing) or ""
    return "\n\n".join(_section(part) for part in re.split(r"\n\s*\n", _fenced(re.sub(r"``([^`]*)``", r"`\1`", doc))))


def _fenced(doc: str) -> str:
    """What is indented below a line that ends in a colon, or behind ``>>>``, as a block of code."""
    lines, out, at = doc.splitlines(), [], 0
    while at < len(lines):
        heading = re.fullmatch(r"(Examples?|Usage):{1,2}", lines[at].strip()) or lines[at].rstrip().endswith("::")
        prompt = lines[at].lstrip().startswith(">>>")
        if not heading and not prompt:
            out.append(lines[at])
            at += 1
            continue
        if heading:
            out.append(re.sub(r":+$", ":", lines[at].rstrip()))
            at += 1
        block = []
        while at < len(lines) and (not lines[at].strip() or lines[at].startswith("    ") or prompt):
            if prompt and not lines[at].strip():
                break
            block.append(lines[at])
            at += 1
        code = inspect.cleandoc("\n".join(["", *block])).strip("\n")
        language = "pycon" if code.startswith(">>>") else "python"
        out += ["", f"```{language}", *(line or "\x00" for line in code.splitlines()), "```", ""]
    return "\n".join(out)


def _section(part: str) -> str:
    """A paragraph; under ``Args:``, ``Raises:`` and the like, a list."""
    lines = part.strip("\n").splitlines()
    if part.lstrip().startswith("```"):
        return part.strip("\n").replace("\x00", "")
    if not lines or not re.fullmatch(r"[A-Z][a-z]+:", lines[0].strip()) or len(lines) == 1:
        return "\n".join(line.strip() if line.startswith(" ") else line for line in lines)
    items, indent = [], len(lines[1]) - len(lines[1].lstrip())
    for line in lines[1:]:
        if len(line) - len(line.lstrip()) == indent:
            name, colon, rest = line.strip().partition(":")
            named = colon and re.fullmatch(r"[\w.]+(, [\w.]+)*", name)
            listed = ", ".join(f"`{each}`" for each in name.split(", "))
            items.append(f"- {listed}:{rest}" if named else f"- {line.strip()}")
        else:
            items.append(f"  {line.strip()}")
    title = lines[0].strip().rstrip(":").replace("Args", "Arguments")
    return "\n".join([f"**{title}**", "", *items])


def layers() -> str:
    """The layers of the package, from the ground up, as ``tests/test_layers.py`` keeps them."""
    names = load_module(ROOT / "tests" / "test_layers.py").LAYERS
    return "\n".join(
        f"{level}. {', '.join(f'`{name}`' for name in sorted(each))}" for level, each in enumerate(names, 1)
    )


def passes() -> str:
    """Every graph pass, in the order in which they run."""
    from posexport.passes.pipeline import PASSES

    return "\n".join(["| pass | what it makes |", "|---|---|", *(f"| `{p.name}` | {p.description} |" for p in PASSES)])


BLOCKS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "api": api,
    "layers": layers,
    "imports": mermaid,
    "passes": passes,
}
