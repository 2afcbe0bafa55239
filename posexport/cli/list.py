"""posexport list"""

import json

import click

from posexport.cli import options

KINDS = ("encodings", "models", "ops", "providers", "tasks", "families")


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS), default="encodings")
@options.json_option
def command(kind: str, as_json: bool) -> None:
    """What there is: encodings, built-in models, operators, providers, tasks, checkpoint families.

    \b
    Example:
        posexport list models
    """
    from posexport.catalogue import catalogue

    rows = catalogue(kind)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:{width}}  {row['what']}".rstrip())
