"""posexport env"""

import click

from posexport.cli import options
from posexport.cli.command import Command


@click.command("env", cls=Command)
@options.json_option
def command(as_json: bool) -> None:
    """Show versions, limits and providers, for bug reports.

    A provider that does not load says why. Names of users and folders are left out.

    \b
    Example:
        posexport env
        posexport env --json
    """
    from posexport.catalogue.environment import environment

    found = environment()
    click.echo(found.to_json() if as_json else found.to_text(), nl=as_json)
