"""An exception of PyTorch or ONNX Runtime as a sentence, and a file with the rest of what it says."""

import re
import traceback
from collections.abc import Iterator

import torch

from posexport.errors import PosexportError
from posexport.export.refusals import REFUSALS
from posexport.system.files import aside
from posexport.system.user_code import line_of_error, line_of_trace

#: characters of a message that no row knows
_QUOTED = 300
#: where a message goes on with what PyTorch suggests, which is seldom right, or with what happened around it
_SUGGESTS = re.compile(
    r"\s*(?:[Cc]onsider using|Suggested fixes|To fix the error|The error above occurred|Caused by:|Hint:|"
    r"If you |The following call|For more information|Failure message:|\(unhinted:)"
)

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class NotTracedError(PosexportError):
    """PyTorch's tracer cannot follow a module."""


def cannot_trace(name: str, err: BaseException) -> NotTracedError:
    """What a module does that the tracer cannot follow; ``name``: the source's."""
    messages = [f"{type(each).__name__}: {each}" for each in _chain(err)]
    line = line_of_error(err) or _line_of_node(err)
    sentence = meaning("\n".join(messages), line)
    quote = sentence or _first_words(messages[-1]) + (f" ({line})" if line else "")
    longer = sentence is not None or len(messages[-1]) > len(_first_words(messages[-1]))
    return NotTracedError(f"{name} cannot be traced: {quote}{_kept(err) if longer else ''}")


def meaning(text: str, line: str) -> str | None:
    """The sentence of the first row that knows ``text``, or what is called in ``line``."""
    sentences = (refusal.sentence(f"{text}\n{line}", line) for refusal in REFUSALS.values())
    return next((sentence for sentence in sentences if sentence is not None), None)


def _chain(err: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, the innermost last."""
    current: BaseException | None = err
    while current is not None:
        yield current
        current = current.__cause__


def _line_of_node(err: BaseException) -> str:
    """The user's line that became the node which the exporter was at; nothing where there is none."""
    for each in _chain(err):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, torch.fx.Node) and (line := line_of_trace(node.stack_trace or "")):
                return line
    return ""


def _first_words(message: str) -> str:
    """A message as far as it says what happened."""
    text = " ".join(_SUGGESTS.split(message, maxsplit=1)[0].split())
    return text if len(text) <= _QUOTED else text[:_QUOTED] + " ..."


def _kept(err: BaseException) -> str:
    path = aside("posexport-trace-", _COLOURS.sub("", "".join(traceback.format_exception(err))))
    return "" if path is None else f"; all that PyTorch says is in {path}"
