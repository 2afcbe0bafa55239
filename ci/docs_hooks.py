"""A hook of mkdocs (mkdocs.yml): help texts of commands as Markdown, in which what stays as it is written is code."""

import html
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from posexport.cli import group


def commands(command: click.Command = group) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                yield from commands(below)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page: GitHub wants bars in the code of tables escaped, mkdocs shows the escape."""
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page: what search engines show of it is its first paragraph."""
    first = re.search(r"</h1>.*?<p>(.*?)</p>", page.content or "", re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", "", first[1])) if first else page.title
    tag = f'<meta name="description" content="{html.escape(textwrap.shorten(text, 160))}">'
    return re.sub(r'<meta name="description"[^>]*>', "", output).replace("</title>", f"</title>\n  {tag}", 1)


def on_startup(**_: Any) -> None:
    """Called by mkdocs before it builds."""
    group.context_settings["terminal_width"] = 100
    for command in commands():
        # click's mark of a paragraph that is not wrapped, its heading, and the indented lines below
        command.help = re.sub(r"\x08\n(.*:)\n(?= )", r"\1\n\n", inspect.cleandoc(command.help or ""))
