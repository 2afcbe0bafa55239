"""Exceptions of PyTorch's tracer and exporter as one sentence, and a file with the whole of their messages."""

import re
import traceback
from collections.abc import Iterator

import torch

from posexport.errors import PosexportError
from posexport.export.refusals import REFUSALS
from posexport.system.files import aside
from posexport.system.user_code import line_of_error, line_of_trace

#: characters of a message without a row in `REFUSALS` that are quoted
_QUOTED = 300
#: where a message continues with the suggestions of PyTorch, which are seldom right, or with its context
_SUGGESTS = re.compile(
    r"\s*(?:[Cc]onsider using|Suggested fixes|To fix the error|The error above occurred|Caused by:|Hint:|"
    r"If you |The following call|For more information|Failure message:|\(unhinted:)"
)

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class NotTracedError(PosexportError):
    """PyTorch's tracer cannot follow a module."""


def cannot_trace(name: str, err: BaseException) -> NotTracedError:
    """Returns the error for the source ``name``, for which the tracer or the exporter raised ``err``."""
    messages = [f"{type(error).__name__}: {error}" for error in _chain(err)]
    line = line_of_error(err) or _line_of_node(err)
    sentence = meaning("\n".join(messages), line)
    quote = sentence or _first_words(messages[-1]) + (f" ({line})" if line else "")
    longer = sentence is not None or len(messages[-1]) > len(_first_words(messages[-1]))
    return NotTracedError(f"{name} cannot be traced: {quote}{_saved(err) if longer else ''}")


def meaning(text: str, line: str) -> str | None:
    """The sentence of the first refusal that matches ``text`` or the user's ``line``; None where there is none."""
    sentences = (refusal.sentence(f"{text}\n{line}", line) for refusal in REFUSALS.values())
    return next((sentence for sentence in sentences if sentence is not None), None)


def _chain(err: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, the innermost last."""
    current: BaseException | None = err
    while current is not None:
        yield current
        current = current.__cause__


def _line_of_node(err: BaseException) -> str:
    """The user's line of the node that the exporter was translating; empty where there is none."""
    for error in _chain(err):
        for frame, _ in traceback.walk_tb(error.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, torch.fx.Node) and (line := line_of_trace(node.stack_trace or "")):
                return line
    return ""


def _first_words(message: str) -> str:
    """The part of a message that says what happened, shortened where it is long."""
    text = " ".join(_SUGGESTS.split(message, maxsplit=1)[0].split())
    return text if len(text) <= _QUOTED else text[:_QUOTED] + " ..."


def _saved(err: BaseException) -> str:
    """Where a file with the whole message is; empty where it cannot be written."""
    path = aside("posexport-trace-", _COLOURS.sub("", "".join(traceback.format_exception(err))))
    return "" if path is None else f"; all that PyTorch says is in {path}"
