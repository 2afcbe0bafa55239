"""Options that mean the same everywhere."""

import click

provider_option = click.option(
    "--provider",
    default="cpu",
    show_default=True,
    help="Where to run: cpu or cuda. One that does not load is an error.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=0, max=1024),
    default=0,
    help="Threads to compute with; 0 lets the runtime choose.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
length_option = click.option(
    "--length",
    "lengths",
    type=click.IntRange(min=1),
    multiple=True,
    help="Check this length (repeatable), not the grid's.",
)
task_option = click.option("--task", help="What the model is for; default: what the checkpoint says.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A size or parameter of a built-in model (repeatable).",
)
allow_pickle_option = click.option(
    "--allow-pickle", is_flag=True, help="Read .bin weights too (with weights_only; safetensors are preferred)."
)
as_transformers_option = click.option(
    "--as-transformers",
    is_flag=True,
    help="Of a checkpoint, compute what transformers' code does where it differs from the paper.",
)
