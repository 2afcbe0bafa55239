"""Commands with grouped options, and suggestions for unknown commands and options."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from posexport.base.options.check import closest, did_you_mean
from posexport.cli.typed import as_typed
from posexport.errors import PosexportError

_PRECISION = "type posexport convert SOURCE -o DIR --precision fp16, bf16, int8 or int4"

#: commands
COMMANDS = {
    "benchmark": "type posexport bench MODEL",
    "chat": 'type posexport generate DIR --chat --prompt "..."',
    "check": "type posexport verify DIR, posexport audit MODEL.onnx, or posexport plot ENCODING --check",
    "check-shift": "type posexport plot ENCODING --check",
    "download": "type hf download REPOSITORY --local-dir DIR, then posexport convert DIR -o BUNDLE",
    "encode": 'type posexport run DIR --text "..."',
    "export": "type posexport convert SOURCE -o DIR",
    "lint": "type posexport audit MODEL.onnx",
    "infer": 'type posexport run DIR --text "..."',
    "inference": 'type posexport run DIR --text "..."',
    "inspect": "type posexport explain DIR",
    "predict": 'type posexport run DIR --text "..."',
    "profile": "type posexport explain DIR",
    "quantize": _PRECISION,
    "serve": "there is no server; in one of yours, posexport.load(DIR) in Python opens a bundle once for all requests",
    "test": "type posexport verify DIR",
    "tokenize": 'type posexport tokenizer encode TOKENIZER.json --text "..."',
    "validate": "type posexport verify DIR",
    "visualize": "type posexport plot ENCODING -o FILE",
}

#: options, on any command that does not have them
OPTIONS = {
    **dict.fromkeys(("--fp16", "--bf16", "--half", "--dtype"), _PRECISION),
    **dict.fromkeys(("--int8", "--int4", "--quantize", "--quantization"), _PRECISION),
    **dict.fromkeys(
        ("--atol", "--rtol"),
        "posexport verify has --tolerance; without it the tolerance comes from PyTorch's float32 error",
    ),
    **dict.fromkeys(
        ("--batch-size", "--sequence-length", "--seq-len", "--dynamic-axes", "--no-dynamic-axes"),
        "a bundle takes any batch size and length; posexport convert --max-length N limits the length",
    ),
    "--device": "type --provider cpu or --provider cuda",
    "--ep": "type --provider cpu or --provider cuda",
    "--framework": "the source is always PyTorch; leave it out",
    "--fp32": "posexport convert writes float32 unless --precision says otherwise; leave it out",
    "--optimize": "posexport convert optimizes by --target: portable, cpu or cuda",
    "--optimization-level": "posexport convert optimizes by --target: portable, cpu or cuda",
    **dict.fromkeys(("--out", "--output-dir", "--output-path", "--save", "--save-dir"), "type -o PATH"),
    "--num-threads": "type --threads N",
    "--trust-remote-code": "nothing of a checkpoint directory is ever executed; leave it out",
    "--with-past": "decoders are always converted with their KV cache; leave it out",
}

#: other tools' options for the model, which is an argument in posexport
_MODEL = ("-m", "--model", "--model-name", "--model-name-or-path", "--checkpoint")


def about_option(name: str, command: str, argument: str | None) -> str | None:
    """What to type in place of option ``name`` of ``posexport command``; None for an unknown option.

    ``argument``: the name of the command's first argument, such as SOURCE.
    """
    dashed = name.replace("_", "-") if name.startswith("--") else name
    if dashed in _MODEL and argument is not None:
        return f"the model is an argument, not an option: type posexport {command} {argument}"
    return OPTIONS.get(dashed)


_PROGRAM = "posexport"


class _Help(click.Command):
    """Help under two names, whatever context asks first: click keeps the option that it made then."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]


class Command(_Help):
    """A command of posexport.

    ``groups``: parameter names by heading in ``--help``; the others are listed last. ``typed``: what to type for words
    of the library's errors (`posexport.cli.typed`).
    """

    def __init__(
        self,
        *args: Any,
        groups: Mapping[str, Sequence[str]] | None = None,
        typed: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.groups = groups or {}
        self.typed = typed or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments; an unknown option that another tool has gets a sentence on what to type."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as err:
            raise click.UsageError(self._about(err.option_name), ctx) from err

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PosexportError as err:
            if self.typed:
                err.args = (as_typed(str(err), self.typed),)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            parameter.name: record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None
        }
        groups = {title: [name for name in names if name in records] for title, names in self.groups.items()}
        grouped = {name for names in groups.values() for name in names}
        groups["Other options" if grouped else "Options"] = [name for name in records if name not in grouped]
        for title, names in groups.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([records[name] for name in names])

    def _about(self, name: str) -> str:
        argument = next((each.human_readable_name for each in self.params if isinstance(each, click.Argument)), None)
        sentence = about_option(name, self.name or "", argument)
        if sentence is not None:
            return f"posexport {self.name} has no {name}: {sentence}"
        known = [text[2:] for each in self.params for text in each.opts if text.startswith("--")]
        match = closest(name.lstrip("-"), known)
        return f"No such option {name}; " + (
            f"did you mean --{match}?" if match else f"see {_PROGRAM} {self.name} --help"
        )


class Group(_Help, click.Group):
    """A group of commands that suggests one for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(unknown_command(name, self.list_commands(ctx), self._path(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def _path(self, ctx: click.Context) -> str:
        return _PROGRAM if ctx.parent is None else f"{_PROGRAM} {self.name}"


def unknown_command(name: str, known: Sequence[str], group: str = _PROGRAM) -> str:
    """The error message for an unknown command: the closest name, or what to type instead."""
    if group == _PROGRAM and (sentence := COMMANDS.get(name)):
        return f"posexport has no command {name!r}: {sentence}"
    return f"No such command {name!r}; {did_you_mean(name, known, f'see {group} --help')}"
