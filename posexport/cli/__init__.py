"""The command line. Each command is a module of the same name, imported when the command is called."""

import atexit
import errno
import gc
import importlib
import os
import sys
from io import TextIOWrapper

import click

from posexport.base.system.ending import end, end_interrupted, is_interruption, print_json
from posexport.base.system.extras import explain_missing
from posexport.cli.command import Group
from posexport.errors import PosexportError
from posexport.version import VERSION

COMMANDS = (
    *("audit", "bench", "compare", "convert", "deploy", "env", "explain", "generate", "list"),
    *("optimize", "plot", "report", "run", "tokenizer", "verify"),
)
#: new objects until the collector looks at them, by default 700 or 2,000
_COLLECTED_AFTER = 10_000


class LazyGroup(Group):
    """Imports a command on first use, so that ``posexport --help`` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # `list` is a command here, once it is imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"posexport.cli.{cmd_name.replace('-', '_')}"), "command")  # noqa: B009
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup)
@click.version_option(VERSION, prog_name="posexport")
def group() -> None:
    """Convert transformers with any position encoding to ONNX: correct at every sequence length, with the proof.

    \b
    Exit codes:
        0    success
        1    the check failed: the ONNX model differs from PyTorch, or an audit found an error
        2    bad input or a missing provider; one sentence on stderr says what to do
        70   a bug of posexport: please report it
        130  interrupted

    POSEXPORT_TRACEBACK=1 prints the traceback of an error. Shell completion of commands, models, encodings and bundles,
    for bash (zsh and fish likewise): eval "$(_POSEXPORT_COMPLETE=bash_source posexport)"
    """


def main() -> None:
    """Entry point: what the user can mend is one sentence on stderr and exit code 2, Ctrl-C is exit code 130.

    Anything else is a defect: exit code 70 (EX_SOFTWARE of sysexits.h) and the file that holds the traceback. With
    --json the sentence is a JSON document on stdout too.
    """
    _own_process()
    try:
        sys.exit(group(standalone_mode=False))
    except click.ClickException as err:
        err.show()
        print_json(err.format_message(), err.exit_code)
        sys.exit(err.exit_code)
    except (KeyboardInterrupt, click.Abort):
        end_interrupted()
    except Exception as err:  # noqa: BLE001 (a defect becomes a report, not a traceback)
        if is_interruption(err):
            end_interrupted()
        if (sentence := _sentence(err)) is not None:
            end(sentence)
        from posexport.cli.defect import report

        end(report(err), 70)


def _own_process() -> None:
    """Process-wide settings of the command line; the library never changes them."""
    from posexport.run.providers import quiet

    quiet()
    # what is imported, and the entries of a tokenizer, are looked through in each of the collector's full rounds
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # the last round would free what the process gives back anyway
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a pipe of Windows is in cp1252, which lacks most characters
            stream.reconfigure(errors="backslashreplace")
    if "explain" in sys.argv[1:2]:  # CUDA reads it when the first session starts; kernels then run one at a time
        os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")


def _sentence(err: Exception) -> str | None:
    """A sentence on what the user can do about an error, or None for a defect."""
    if isinstance(err, PosexportError):
        return str(err)
    if isinstance(err, ModuleNotFoundError):
        return explain_missing(err, _command())
    # the second is how PyTorch says it
    if isinstance(err, MemoryError) or (isinstance(err, RuntimeError) and "can't allocate memory" in str(err)):
        return "out of memory; use a smaller model, shorter --length values or a larger machine"
    unreadable = [ascii(word) for word in sys.argv[1:] if word.encode(errors="replace") != os.fsencode(word)]
    if isinstance(err, UnicodeEncodeError) and unreadable:
        return f"the argument {unreadable[0]} is not UTF-8; give text in UTF-8"
    if isinstance(err, OSError) and err.filename is not None:
        return f"cannot use {err.filename}: {err.strerror}; give a path that can be read and written"
    if isinstance(err, OSError) and err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return f"cannot write the result: {err.strerror}; free or choose another disk"
    return None


def _command() -> str:
    return next((f"posexport {word}" for word in sys.argv[1:] if word in COMMANDS), "posexport")
