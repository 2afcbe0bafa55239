"""Modules that replace a submodule: an encoding of posexport, with the submodule's arguments and outputs.

Shape letters: B batch, H heads, T tokens or queries, S keys, D head size, C channels, F pairs of channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from posexport.encodings.encoding import Encoding, Term
from posexport.encodings.rope.rope import Rope
from posexport.encodings.tables import PositionVectors
from posexport.graph.ops.attention import BiasSpec
from posexport.graph.ops.spec import emit
from posexport.graph.ops.tracing import traced_as
from posexport.modules.replaced.calls import Arguments, Call, Reads, by_key, varying

#: how cosines of F pairs are laid out in D channels
Doubled = Literal["no", "half", "interleaved"]


class StandIn(nn.Module, ABC):
    """Base of replacements: a subclass has the hook of its encodings, the calls that it fits, and computes them."""

    #: the hook of the encodings that fit
    hook: ClassVar[str]
    #: its calls, for messages
    contract: ClassVar[str]

    def __init__(self, encoding: Encoding, reads: Reads) -> None:
        super().__init__()
        self.encoding, self.reads = encoding, reads
        #: has the dtype and device of the module, also for encodings without weights
        self.register_buffer("moved", torch.empty(0), persistent=False)

    @classmethod
    @abstractmethod
    def sizes(cls, first: Call, second: Call) -> dict[str, int] | None:
        """The encoding's sizes that calls at two lengths show; None where the calls do not fit."""

    @classmethod
    def refusal(cls, encoding: Encoding) -> str | None:
        """Why an encoding with this hook does not fit; None where it does."""
        del encoding  # all with this hook fit
        return None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(by_key(args, kwargs))

    @abstractmethod
    def compute(self, arguments: Arguments) -> Any:
        """What the submodule would return for these arguments."""

    def learn_from(self, original: Callable[..., Any], call: Call) -> None:
        """Learn from one call of the original what its sizes do not tell."""

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device to compute with."""
        moved = self.moved
        assert isinstance(moved, Tensor)
        return moved


class Bias(StandIn):
    """A bias of positions alone: one ``AttentionBias`` node in a graph, which becomes a term of attention."""

    hook = "scores"
    contract = "a length, queries and keys, or a tensor of tokens -> a bias [H, T, S] or [1 or B, H, T, S]"

    @classmethod
    def sizes(cls, first: Call, second: Call) -> dict[str, int] | None:
        if len(first.outputs) != 1 or not _floats(first, second):
            return None
        shape = first.output.shape
        pairs = shape == (*shape[:-2], *Reads.of(first, second).lengths(first.arguments))
        if not pairs or varying(shape, second.output.shape) != [len(shape) - 2, len(shape) - 1]:
            return None
        return {"heads": shape[-3]} if len(shape) in (3, 4) else None

    @classmethod
    def refusal(cls, encoding: Encoding) -> str | None:
        at = Reads(counts=(0, 0)).pairs({0: 2}, torch.device("cpu"))
        heads, size = (int(encoding.parameters_given.get(name) or 1) for name in ("heads", "head_size"))
        x_BHTD = torch.zeros(1, heads, 2, size)
        term = encoding.scores(x_BHTD, x_BHTD, *at)
        if term is None or term.operator.takes or encoding.reads_input:
            return "it reads queries or keys; put posexport.nn.Attention in the place of the attention"
        return None

    def learn_from(self, original: Callable[..., Any], call: Call) -> None:
        self.axes, self.batch = call.output.ndim, call.output.shape[0] if call.output.ndim == 4 else 1
        if len(self.reads.counts) != 2:
            return
        first, last = self.reads.counts
        fewer = call.arguments[last] // 2
        args = [fewer if at == first else value for at, value in enumerate(call.args)]
        named = {key: fewer if key == first else value for key, value in call.kwargs.items()}
        some = original(*args, **named)
        at_end = torch.equal(some, call.output[..., -fewer:, :])
        self.reads = Reads(self.reads.counts, self.reads.ids, self.reads.axes, at_end=at_end)

    def compute(self, arguments: Arguments) -> Tensor:
        like = self.like
        queries, keys = self.reads.pairs(arguments, like.device)
        x_BHTD = like.new_zeros(1, 1, 1, 1)
        term = self.encoding.scores(x_BHTD, x_BHTD, queries, keys)
        assert term is not None
        bias_1HTS = as_bias(term)
        if self.axes == 3:
            return bias_1HTS[0]
        if self.batch == 1:
            return bias_1HTS
        rows = next(arguments[key].shape[0] for key, _ in self.reads.axes)
        return bias_1HTS.expand(rows, -1, -1, -1)


def _bias_node(term: Term) -> Tensor:
    tensors = [*term.tensors, term.queries.slots_T, term.keys.slots_T]
    shape = term.operator.shape(*tensors)
    return emit(BiasSpec(term.operator.name), tensors, like=term.tensors[0], shape=shape, heads=shape[1])


@traced_as(_bias_node)
def as_bias(term: Term) -> Tensor:
    """The scores of a term that reads neither queries nor keys, [1, H, T, S]."""
    return term.dense()


class Waves(StandIn):
    """Cosines and sines, with which the module rotates itself."""

    hook = "rotate"
    contract = "a length, positions or a tensor of tokens -> (cos, sin), each [.., T, ..] by D or D / 2 channels"

    @classmethod
    def sizes(cls, first: Call, second: Call) -> dict[str, int] | None:
        if len(first.outputs) != 2 or not _floats(first, second) or _same_shapes(first, 2):
            return None
        cos, sin = first.outputs
        axes = varying(cos.shape, second.outputs[0].shape)
        if cos.shape != sin.shape or len(axes) != 1 or axes[0] == cos.ndim - 1:
            return None
        return {"head_size": cos.shape[-1] * (2 if _doubled(cos) == "no" else 1)}

    @classmethod
    def refusal(cls, encoding: Encoding) -> str | None:
        return None if isinstance(encoding, Rope) else "it has no one pair of cosines and sines"

    def learn_from(self, original: Callable[..., Any], call: Call) -> None:
        cos = call.outputs[0]
        tokens = self.reads.lengths(call.arguments)[0]
        self.doubled: Doubled = _doubled(cos)
        self.token_axis = list(cos.shape[:-1]).index(tokens)
        self.by_row = [size != 1 and axis != self.token_axis for axis, size in enumerate(cos.shape[:-1])]

    def compute(self, arguments: Arguments) -> tuple[Tensor, Tensor]:
        like = self.like
        positions = self.reads.positions(arguments, like.device)
        assert isinstance(self.encoding, Rope)
        cos, sin = self.encoding.waves(positions, like.dtype, "query")
        return self._shaped(cos, arguments), self._shaped(sin, arguments)

    def _shaped(self, x_B1TF: Tensor, arguments: Arguments) -> Tensor:
        """As the original's: tokens at their axis, ones or the batch at the others."""
        x_BTF = x_B1TF[:, 0]
        if self.doubled == "half":
            x_BTF = torch.cat((x_BTF, x_BTF), -1)
        elif self.doubled == "interleaved":
            x_BTF = x_BTF.repeat_interleave(2, -1)
        if not any(self.by_row):
            x_BTF = x_BTF[:1]
        elif x_BTF.shape[0] == 1:
            rows = next((arguments[key] for key in [self.reads.ids, *dict(self.reads.axes)] if key is not None), x_BTF)
            x_BTF = x_BTF.expand(rows.shape[0], -1, -1)
        shape = [1] * len(self.by_row)
        shape[self.token_axis] = x_BTF.shape[1]
        for axis, by_row in enumerate(self.by_row):
            shape[axis] = x_BTF.shape[0] if by_row else shape[axis]
        return x_BTF.reshape(*shape, x_BTF.shape[-1])


class Rotated(StandIn):
    """Queries, keys or both, rotated: ``Rotation`` nodes in a graph."""

    hook = "rotate"
    contract = "queries, or queries and keys, [B, H, T, D] or [B, T, H, D] -> the same, rotated"

    @classmethod
    def sizes(cls, first: Call, second: Call) -> dict[str, int] | None:
        count = len(first.outputs)
        if count > 2 or not _floats(first, second) or not _same_shapes(first, count):
            return None
        shape = first.outputs[0].shape
        axes = varying(shape, second.outputs[0].shape)
        fits = len(shape) == 4 and axes in ([1], [2])
        return {"head_size": shape[-1]} if fits else None

    def learn_from(self, original: Callable[..., Any], call: Call) -> None:
        self.count, self.alone = len(call.outputs), not isinstance(call.output, tuple)
        tokens = self.reads.lengths(call.arguments)[0]
        self.token_axis = 2 if call.outputs[0].shape[2] == tokens else 1

    def compute(self, arguments: Arguments) -> Any:
        positions = self.reads.positions(arguments, self.like.device)
        rotated = [self._rotate(arguments[key], positions, key) for key in range(self.count)]
        return rotated[0] if self.alone else tuple(rotated)

    def _rotate(self, x: Tensor, positions: Any, index: int) -> Tensor:
        role: Literal["query", "key"] = "key" if index else "query"
        if self.token_axis == 2:
            return self.encoding.rotate(x, positions, role)
        return self.encoding.rotate(x.transpose(1, 2), positions, role).transpose(1, 2)


class Added(StandIn):
    """Token embeddings with positions in them."""

    hook = "embed"
    contract = "token embeddings [B, T, C] or [T, B, C] -> the same with the positions added"

    @classmethod
    def sizes(cls, first: Call, second: Call) -> dict[str, int] | None:
        if len(first.outputs) != 1 or not _floats(first, second) or not _same_shapes(first, 1):
            return None
        shape = first.output.shape
        fits = len(shape) == 3 and varying(shape, second.output.shape) in ([0], [1])
        return {"hidden": shape[-1]} if fits else None

    @classmethod
    def refusal(cls, encoding: Encoding) -> str | None:
        return "it makes the embeddings wider" if encoding.added_width else None

    def learn_from(self, original: Callable[..., Any], call: Call) -> None:
        tokens = self.reads.lengths(call.arguments)[0]
        self.tokens_first = call.output.shape[1] != tokens

    def compute(self, arguments: Arguments) -> Tensor:
        x = arguments[0]
        positions = self.reads.positions(arguments, x.device)
        if not self.tokens_first:
            return self.encoding.embed(x, positions)
        return self.encoding.embed(x.transpose(0, 1), positions).transpose(0, 1)


class Rows(StandIn):
    """Position vectors, which the module adds itself."""

    hook = "embed"
    contract = "a length, positions or a tensor of tokens -> their vectors [T, C] or [1 or B, T, C]"

    @classmethod
    def sizes(cls, first: Call, second: Call) -> dict[str, int] | None:
        if len(first.outputs) != 1 or not _floats(first, second) or _same_shapes(first, 1):
            return None
        shape = first.output.shape
        fits = len(shape) in (2, 3) and varying(shape, second.output.shape) == [len(shape) - 2]
        return {"hidden": shape[-1]} if fits else None

    @classmethod
    def refusal(cls, encoding: Encoding) -> str | None:
        fits = isinstance(encoding, PositionVectors) and not encoding.added_width
        return None if fits else "it has no vector of its own for each position"

    def learn_from(self, original: Callable[..., Any], call: Call) -> None:
        self.axes = call.output.ndim
        self.by_row = self.axes == 3 and call.output.shape[0] != 1

    def compute(self, arguments: Arguments) -> Tensor:
        like = self.like
        assert isinstance(self.encoding, PositionVectors)
        vectors_BTC = self.encoding.vectors(self.reads.positions(arguments, like.device).ids_BT, like.dtype)
        vectors_BTC = vectors_BTC.to(like.dtype)
        if self.axes == 2:
            return vectors_BTC[0]
        if self.by_row and vectors_BTC.shape[0] == 1:
            rows = next(arguments[key] for key in [self.reads.ids, *dict(self.reads.axes)] if key is not None)
            return vectors_BTC.expand(rows.shape[0], -1, -1)
        return vectors_BTC


#: in the order in which they are tried
STAND_INS: Sequence[type[StandIn]] = (Bias, Rotated, Waves, Added, Rows)


def for_calls(hooks: Sequence[str], first: Call, second: Call) -> tuple[type[StandIn], Mapping[str, int]] | None:
    """The first class for ``hooks`` that fits these calls, and the sizes that they show."""
    if Reads.of(first, second).known and len(first.outputs) == len(second.outputs):
        for kind in STAND_INS:
            if [kind.hook] == list(hooks) and (sizes := kind.sizes(first, second)) is not None:
                return kind, sizes
    return None


def _floats(*calls: Call) -> bool:
    """Whether all outputs are floating-point tensors, with the same number of axes at both lengths."""
    outputs = [output for call in calls for output in call.outputs]
    if not all(isinstance(output, Tensor) and output.is_floating_point() for output in outputs):
        return False
    return len({output.ndim for output in outputs}) == 1


def _same_shapes(call: Call, count: int) -> bool:
    """Whether the first arguments are floating-point tensors with the shapes of the outputs."""
    first = [call.args[index] if index < len(call.args) else None for index in range(count)]
    return all(
        isinstance(x, Tensor) and x.is_floating_point() and x.shape == output.shape
        for x, output in zip(first, call.outputs, strict=False)
    )


def _doubled(cos: Tensor) -> Doubled:
    """How each cosine occurs twice in a row, if it does."""
    pairs, odd = divmod(cos.shape[-1], 2)
    if not odd and torch.equal(cos[..., :pairs], cos[..., pairs:]):
        return "half"
    return "interleaved" if not odd and torch.equal(cos[..., ::2], cos[..., 1::2]) else "no"
