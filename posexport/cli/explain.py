"""posexport explain"""

import sys
from pathlib import Path
from typing import Any

import click

from posexport.cli import options
from posexport.cli.command import Command


@click.command("explain", cls=Command)
@options.bundle_argument
@options.number_option("--length", "Tokens of a call that is timed; default: 128, or 1 with --past.")
@options.number_option("--past", "Tokens in a decoder's KV cache.", least=0)
@options.number_option("--batch", "Batch size.", default=1, show_default=True)
@options.provider_option
@options.threads_option
@options.json_option
def command(directory: Path, as_json: bool, **choices: Any) -> None:
    """Show how attention is implemented, and its share of the time.

    DIR is a bundle. For each type of attention and rotation node: its implementation (lowering), and why others were
    not chosen. Then ONNX Runtime's profile of a few calls, for each graph of the bundle: kernels, providers, and
    the share of time of positions, attention and everything else. Where the provider does not load here, which nodes it
    has kernels for, by the kernel table, and why not the others.

    \b
    Example:
        posexport explain shaw --length 512 --threads 2
        posexport explain smollm --past 2048
    """
    from posexport.base.targets.providers import provider_named
    from posexport.inspect.explain.eligibility import eligibility
    from posexport.inspect.explain.explanation import explain

    provider = provider_named(choices["provider"])
    if not provider.built_in and (why := _why_not(provider.name)):
        table = eligibility(directory, provider.name, why)
        click.echo(table.to_json() if as_json else "\n".join(table.lines()))
        return
    explanation = explain(directory, **choices)
    if as_json:
        click.echo(explanation.to_json())
        return
    from rich.console import Console

    from posexport.inspect.explain.records import shown

    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(shown(explanation))


def _why_not(provider: str) -> str | None:
    """The reason why a provider does not load on this machine; None if it loads."""
    from posexport.errors import PosexportError
    from posexport.run.providers import check_loads, quiet

    quiet()  # what ONNX Runtime logs is in the sentence
    try:
        check_loads(provider)
    except PosexportError as err:
        return str(err)
    return None
