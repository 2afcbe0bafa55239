"""Exceptions of PyTorch, its exporter and ONNX Runtime in sentences, and what to write in a module instead.

Every row has a bad module of its name in ``tests/bad_modules/refused.py`` that causes the message today, and a mended
one that converts. The first row that matches counts: a special case of another precedes it.
"""

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from posexport.base.system.files import aside
from posexport.base.system.user_code import is_external, line_of_error, line_of_trace, package_called
from posexport.errors import PosexportError


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A row of the table in ``docs/refused-modules.md``.

    Attributes:
        says: the message as people meet it, which ``pattern`` matches.
        pattern: a regular expression, looked for in the messages of the whole chain of exceptions.
        meaning: what the line does, after ``model.py line 7: `...` ``; ``{0}`` is the pattern's first group.
        remedy: what to write instead.
        threads: where people ask about it.
    """

    says: str
    pattern: str
    meaning: str
    remedy: str
    threads: tuple[str, ...] = ()

    def sentence(self, text: str, line: str) -> str | None:
        """What ``text`` means, None where it is another message; ``line``: the user's, empty where it is not known."""
        match = re.search(self.pattern, text)
        if match is None:
            return None
        return f"{line or 'the module'} {self.meaning.format(*match.groups())}; {self.remedy}"


#: functions of NumPy that an array of objects, as it makes of symbolic sizes, asks its elements for
_OF_ARRAYS = "|".join(name for name in dir(np) if isinstance(getattr(np, name), np.ufunc))

#: by the name of the bad module
REFUSALS: dict[str, Refusal] = {
    # FlexAttention, which ONNX has only as a preview that ONNX Runtime does not register.
    "flex_attention": Refusal(
        says="There was no rule registered for HigherOrderOperator flex_attention",
        pattern=r"flex_attention",
        meaning="calls flex_attention, for which ONNX has a preview operator that ONNX Runtime does not run",
        remedy="call F.scaled_dot_product_attention, with what score_mod and block_mask do as a float mask",
        threads=("onnx/onnx 7494",),
    ),
    # Nested tensors that the module makes; `nn.TransformerEncoder` makes none (`sources.torch_fixes.fast_path`).
    "nested_tensor": Refusal(
        says="UnsupportedOperatorException: aten._nested_tensor_from_tensor_list.default",
        pattern=r"aten\.?:*_?\w*nested_tensor|NestedTensor",
        meaning="makes a nested tensor, which ONNX has not",
        remedy="keep rows padded to one length and mask what is padded",
        threads=("pytorch/pytorch 156681",),
    ),
    # Frequencies around the middle, `x[:, n // 2 - 4 : n // 2 + 4]`: shorter inputs have fewer.
    "slice_between_sizes": Refusal(
        says="needs the length of a slice between two sizes as a number",
        pattern=r"needs the length of a slice between two sizes as a number",
        meaning="takes a slice between two sizes, whose length PyTorch's tracer does not know and a later line needs",
        remedy="take x.narrow(axis, start, length), with a number as the length",
        threads=(),
    ),
    # A value of a tensor that a Python loop or a shape needs as a number.
    "value_as_size": Refusal(
        says="Could not extract specialized integer from data-dependent expression u0",
        pattern=(
            r"Could not extract specialized integer from data-dependent expression"
            r"|\.numpy\(\) is not supported for tensor subclasses"
        ),
        meaning="needs a tensor's value as a Python number (`range`, a list, a size), and a graph has none",
        remedy="compute all rows or tokens at once and mask those that do not count",
        threads=("pytorch/pytorch 143222", "pytorch/pytorch 127153"),
    ),
    # A Python decision by a tensor's values: `mask.any()`, `.item()`, the running length as a tensor.
    "branch_on_values": Refusal(
        says="GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)",
        pattern=r"Could not guard on data-dependent expression|Dynamic control flow is not supported",
        meaning="decides in Python by a tensor's values, and a graph has one way for all of them",
        remedy=(
            "compute both ways and choose with torch.where, or mask; take a length from x.shape[1], not from a tensor"
        ),
        threads=("pytorch/pytorch 153955", "pytorch/pytorch 157355", "pytorch/pytorch 163791"),
    ),
    # Antialiased interpolation, as of tables of image positions: the graph is written and runs, and its values differ.
    "antialiased_resize": Refusal(
        says="a node Resize with antialias, in a graph that is not proven",
        pattern=r"a node Resize with antialias, in a graph that is not proven",
        meaning="interpolates with antialias=True, which ONNX's Resize computes with other weights",
        remedy="interpolate with antialias=False, or in __init__ where the size is fixed",
        threads=("pytorch/pytorch 116306",),
    ),
    # `try:` around a layer that raises at small sizes: the tracer loses the layer.
    "caught_error": Refusal(
        says="AssertionError: Unexpected key _export_root.module.padding@2, expected _export_root.module",
        pattern=r"Unexpected key (?:_export_root\.module\.)?([\w.]+)(?:@\d+)?, expected ",
        meaning="calls {0}, catches what it raises at some sizes, and goes on in another way; a graph catches nothing",
        remedy="ask for the size before the call, or convert without what it does then",
        threads=(),
    ),
    # A Python branch by a size: the graph has the one that the traced size took.
    "branch_on_length": Refusal(
        says="was decided False by a size while the module was traced",
        pattern=r"was decided (True|False) by a size while the module was traced",
        meaning="was decided once for all sizes, as {0}, when the module was traced",
        remedy=(
            "compute both ways and choose with torch.where, convert with a --max-length below its limit, or give the "
            "sizes that decide as numbers with axes="
        ),
        threads=("pytorch/pytorch 148568", "pytorch/pytorch 168908"),
    ),
    # A Python loop over tokens, each step of which reads the one before.
    "loop_over_tokens": Refusal(
        says="fixed at 11 by the trace: model.py line 7: for t in range(x.shape[1]):",
        pattern=r"fixed at \d+ by the trace[^`]*line \d+: `?for \w+",
        meaning="loops over a size, and a graph has as many steps as were traced",
        remedy=(
            "compute all tokens at once, by nn.GRU, nn.LSTM or nn.RNN where a step reads the one before, or give the "
            "size as a number with axes="
        ),
        threads=(),
    ),
    # A length that became a constant: a Python int, a loop over tokens, a NumPy mask, a view with literals.
    "fixed_length": Refusal(
        says="your code specialized it to be a constant (11)",
        pattern=(
            r"fixed at \d+ by the trace|specialized it to be a constant|inferred to be a constant|Constraints violated"
            rf"|'\w+' object has no attribute '(?:{_OF_ARRAYS})'"
        ),
        meaning="makes a constant of a size, so that the graph takes no other",
        remedy=(
            "compute it from x.shape with torch.arange(x.shape[1]) and the like, not int(), range(), NumPy or a loop, "
            "or give its size as a number with axes="
        ),
        threads=("pytorch/pytorch 140011", "pytorch/pytorch 133653"),
    ),
    # Operators of PyTorch that the exporter has no translation of.
    "unknown_operator": Refusal(
        says="No ONNX function found for <OpOverload(op='aten.linalg_inv_ex', overload='default')>",
        pattern=r"(?:No ONNX function found for <OpOverload\(op='|UnsupportedOperatorException: )([\w.]+\w)",
        meaning="uses {0}, which PyTorch's exporter has no ONNX operators for",
        remedy="write it in other operations, or compute it in __init__ where it depends on weights alone",
        threads=(),
    ),
    # ONNX Runtime fails at a size other than the traced one: a size is baked into a node.
    "fails_at_run_time": Refusal(
        says="Non-zero status code returned while running Gather node. Name:'node_select_7'",
        pattern=r"Non-zero status code returned while running (\w+) node",
        meaning="became a node {0} that ONNX Runtime cannot run at another size: a size of the traced example is in it",
        remedy="compute its sizes from x.shape, or write it in operations whose sizes follow from their inputs",
        threads=("pytorch/pytorch 148886", "pytorch/pytorch 191855"),
    ),
}


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


class FixedAxisError(NotTracedError):
    """A ``line`` of a module fixes axis ``number`` of an input, which varies in calls of the module.

    ``larger``: a size to trace at, of which the module makes more than one part; None: it makes parts of no size.
    """

    def __init__(self, message: str, input_name: str, number: int, line: str, larger: int | None = None) -> None:
        super().__init__(message)
        self.input_name, self.number, self.line, self.larger = input_name, number, line, larger


def cannot_trace(name: str, err: BaseException, slices: Mapping[str, str] = {}) -> NotTracedError:
    """Returns the error for the source ``name``, for which the tracer or the exporter raised ``err``.

    ``slices``: the user's lines with slices whose length is a symbol.
    """
    messages = [f"{type(error).__name__}: {error}" for error in _chain(err)]
    line = line_of_error(err) or _line_of_node(err)
    if (made := _line_of_slice(err, slices)) is not None:
        messages[0] += "; needs the length of a slice between two sizes as a number"
        line = made
    sentence = meaning("\n".join(messages), line)
    quote = sentence or _first_words(messages[-1]) + (f" ({line})" if line else "")
    longer = sentence is not None or len(messages[-1]) > len(_first_words(messages[-1]))
    return NotTracedError(f"{name} cannot be traced: {quote}{_saved(err) if longer else ''}")


#: packages that write, change and check graphs
_ONNX = ("onnx", "onnx_ir", "onnxscript")
#: how onnx names a node in its messages
_NODE = re.compile(r"node name: ?([\w./-]+)")


@contextmanager
def without_onnx_errors(name: str, lines: Mapping[str, str]) -> Iterator[None]:
    """Inside the block whatever onnx, onnx-ir and onnxscript raise about the graph of ``name`` is a NotTracedError.

    ``lines``: the user's, by the name of the node that they became.
    """
    try:
        yield
    except Exception as err:
        package = package_called(err)
        if package not in _ONNX or isinstance(err, PosexportError | OSError) or is_external(err):
            raise
        # a tensor that is computed when the file is written says itself why it cannot be
        if (reason := next((each for each in _chain(err) if isinstance(each, PosexportError)), None)) is not None:
            raise reason from err
        message = f"{type(err).__name__}: {err}"
        node = _NODE.search(message)
        line = lines.get(node[1], "") if node else line_of_error(err)
        raise NotTracedError(
            f"{name} cannot be converted: {package} refuses its graph, {_first_words(message)}"
            f"{f' ({line})' if line else ''}; write that in other operations, and report it to posexport{_saved(err)}"
        ) from err


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


def _line_of_slice(err: BaseException, slices: Mapping[str, str]) -> str | None:
    """The line with the slice whose length was needed as a number; None for another error."""
    conditions = (error.cond for error in _chain(err) if isinstance(error, GuardOnDataDependentSymNode))
    symbols = (str(symbol) for condition in conditions for symbol in getattr(condition, "free_symbols", ()))
    return next((slices[symbol] for symbol in symbols if symbol in slices), None)


def _first_words(message: str) -> str:
    """The part of a message that says what happened, shortened where it is long."""
    text = " ".join(_SUGGESTS.split(message, maxsplit=1)[0].split())
    return text if len(text) <= _QUOTED else text[:_QUOTED] + " ..."


def _saved(err: BaseException) -> str:
    """Where a file with the whole message is; empty where it cannot be written."""
    path = aside("posexport-trace-", _COLOURS.sub("", "".join(traceback.format_exception(err))))
    return "" if path is None else f"; all that PyTorch says is in {path}"
