"""posexport deploy"""

from pathlib import Path
from typing import Any

import click
import msgspec

from posexport.cli import options
from posexport.cli.command import Command
from posexport.serve.deploy.engine import ENGINES

_LISTED = "\n".join(
    f"    {name:<10} {what}"
    for name, what in [
        *((name, engine.what) for name, engine in ENGINES.items()),
        *((name, f"from the package {package}") for name, package in ENGINES.packages.items()),
    ]
)


@click.command(
    "deploy",
    cls=Command,
    help=f"""Write the files that run a bundle in an engine.

DIR is a bundle. OUT becomes a small folder with a README of one command and a copy of the bundle. The engine's own
runtime does the serving; it need not be installed here.

\b
Engines:
{_LISTED}

\b
Example:
    posexport deploy minilm --to mlserver -o minilm-mlserver
    posexport deploy minilm --to ray-data --workers 2 --link -o job
""",
)
@options.bundle_argument
@click.option("--to", required=True, type=click.Choice(ENGINES.names), help="The engine.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--name", metavar="NAME", help="Name of the model in the engine; default: the bundle's.")
@click.option("--link", is_flag=True, help="Refer to the bundle where it is, do not copy it.")
@options.number_option("--workers", "Processes that compute.", default=1, show_default=True)
@options.provider_option
@options.provider_options_option
@options.json_option
def command(directory: Path, to: str, output: Path, as_json: bool, **choices: Any) -> None:
    from posexport.serve.deploy.write import deploy

    done = deploy(directory, to, output, **choices)
    click.echo(msgspec.json.encode(done).decode() if as_json else done.to_text())
