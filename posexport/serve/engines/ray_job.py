"""The command line of a generated batch job, ``python job.py INPUT OUTPUT``."""

import sys
from pathlib import Path
from typing import Any

import click

from posexport.errors import PosexportError


def main(bundle: str | Path, **options: Any) -> None:
    """Run the job of the command line; exit codes: 0 done, 1 rows without a vector, 2 bad input, 130 interrupted."""

    @click.command(help="Encode the texts of INPUT (.parquet, .jsonl or a folder of them) into the folder OUTPUT.")
    @click.argument("source", metavar="INPUT", type=click.Path(path_type=Path))
    @click.argument("output", type=click.Path(path_type=Path))
    @click.option("--column", default=options.pop("column", "text"), show_default=True, help="The column of texts.")
    @click.option("--workers", type=int, default=options.pop("workers", 2), show_default=True, help="Sessions.")
    def command(source: Path, output: Path, column: str, workers: int) -> None:
        from posexport.serve.engines.ray_data import Job, run

        job = Job(bundle=Path(bundle), source=source, output=output, column=column, workers=workers, **options)
        done = run(job, _tell)
        click.echo(
            f"{output}: {done.rows} rows in {done.blocks} files, {done.done_before} of them from before"
            + (f"; {done.failed} rows have no vector, their column 'error' says why" if done.failed else "")
        )
        sys.exit(1 if done.failed else 0)

    try:
        command(standalone_mode=False)
    except click.ClickException as err:
        err.show()
        sys.exit(err.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("job.py: interrupted; what is done is kept, run the same command again", err=True)
        sys.exit(130)
    except PosexportError as err:
        click.echo(f"job.py: {err}", err=True)
        sys.exit(2)


def _tell(done: int, blocks: int) -> None:
    click.echo(f"{done} of {blocks} blocks", err=True)
