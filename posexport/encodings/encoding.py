"""The interface of position encodings: at most four hooks, each with explicit integer positions as arguments.

Shape letters: B batch (or 1), H heads, T queries, S keys, D head size, C model size ("hidden"), M table length.

``embed``: once, with the token embeddings ``x_BTC``; returns them with the positions added or joined, [B, T, C].
``rotate``: in attention, with queries or keys ``x_BHTD``; returns the same shape.
``scores``: in attention; returns a `Term` to add to ``q k^T``, before it is scaled or after.
``values``: in attention; returns a `Term` of the probabilities, to add to the context.

An encoding never applies the padding mask. A `Term` is a structure, not a tensor: it names an operator and the tensors
it needs, so that a lowering can compute it as late and as little as possible; ``Term.dense`` computes it in full.

With ``per_layer = True`` every layer has separate parameters: a definition uses ``in_layer(i)`` in layer ``i``, which
is the encoding itself if all layers share its parameters or it has none.
"""

import contextlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from posexport.base.options.check import check_values
from posexport.base.registry import Registry
from posexport.base.spec import Beyond, EncodingSpec
from posexport.encodings.files import FILES
from posexport.encodings.positions import Positions
from posexport.errors import PosexportError
from posexport.graph.ops.operator import Operator

Array = NDArray[np.float64]
Value = int | float | str | bool | None
HOOKS = ("embed", "rotate", "scores", "values")


@dataclass(frozen=True)
class Term:
    """One term of attention: an operator, its parameters, and the positions of queries and keys."""

    operator: Operator
    tensors: tuple[Tensor, ...]
    queries: Positions
    keys: Positions
    #: for scores, [H, 1, D]: a vector per head that is added to the query in ``q k^T`` (Transformer-XL's u). Attention
    #: adds it once per query, not per pair; the operator reads the same queries
    content_bias: Tensor | None = None

    def dense(self, **inputs: Tensor) -> Tensor:
        """The term as a tensor; ``inputs``: the subset of ``q``, ``k`` and ``probs`` that the operator reads.

        A content bias needs ``k`` as well; the result includes its scores.
        """
        if self.content_bias is None:
            needed = (inputs[name] for name in self.operator.takes)
            return self.operator(*needed, *self.tensors, self.queries.slots_T, self.keys.slots_T)
        q_BHTD, rest = self.biased(inputs["q"])
        return rest.dense(q=q_BHTD, k=inputs["k"]) + self.content_bias @ inputs["k"].mT

    def of_queries(self, tokens: slice) -> Self:
        """The term for a slice of the queries."""
        return replace(self, queries=self.queries.part(tokens))

    def biased(self, q_BHTD: Tensor) -> tuple[Tensor, Self]:
        """The queries with the content bias, if there is one, and the term without it."""
        if self.content_bias is None:
            return q_BHTD, self
        return q_BHTD + self.content_bias, replace(self, content_bias=None)


class Encoding(nn.Module):
    """Base of all encodings. A subclass overrides the hooks that it acts through."""

    #: registered name, set by `register`; until then the name of the class
    name: str
    #: the overridden hooks, in the order of `HOOKS`; empty: a control without positions
    hooks: ClassVar[tuple[str, ...]] = ()
    #: the hooks that act in attention
    attention_hooks: ClassVar[tuple[str, ...]] = ()
    #: how many coordinates a position has: 1 in text, 2 for the patches of an image (row, column)
    axes: ClassVar[int] = 1
    #: positions are within a window of an image, at most ``window`` patches on a side
    windowed: ClassVar[bool] = False
    window: int = 0
    #: its bias is for scores that are cosines (Swin V2), not dot products
    cosine_scores: ClassVar[bool] = False
    #: only for causal attention
    causal: ClassVar[bool] = False
    #: `scores` gets the attention's input, split into heads, instead of the queries
    reads_input: ClassVar[bool] = False
    #: a token's values depend on the length of its row, so that a KV cache holds values of shorter calls
    length_dependent: bool = False
    #: every layer has separate parameters
    per_layer: ClassVar[bool] = False
    #: names of parameters and modules that all layers share although ``per_layer``
    tied: ClassVar[tuple[str, ...]] = ()
    #: names of parameters that angles are computed from: float32 in models of half precision too
    position_parameters: ClassVar[tuple[str, ...]] = ()
    #: number of products that a score sums, q k^T included: attention scales by ``(head size * score_terms)^-0.5``
    score_terms: int = 1
    #: adding a constant to all positions changes nothing
    shift_invariant: bool = True
    #: padding on the right changes nothing: the formula does not read the length of the input
    padding_invariant: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.__name__
        cls.hooks = tuple(hook for hook in HOOKS if getattr(cls, hook) is not getattr(Encoding, hook))
        cls.attention_hooks = tuple(hook for hook in cls.hooks if hook != "embed")

    def __init__(self, **parameters: Value) -> None:
        """``parameters``: all arguments of the subclass's constructor.

        Raises PosexportError for one that is not of its annotated type (`posexport.base.options.check`).
        """
        super().__init__()
        for cls in type(self).__mro__:
            if "__init__" in vars(cls):
                with contextlib.suppress(NameError):  # annotations that only a type checker can read
                    check_values(
                        self.name, typing.get_type_hints(vars(cls)["__init__"], include_extras=True), parameters
                    )
        #: the constructor's arguments, as the manifest records them
        self.parameters_given: dict[str, Value] = parameters

    @classmethod
    def arguments(cls) -> dict[str, Parameter]:
        """The constructor's arguments by name, with types and defaults."""
        parameters = inspect.signature(cls, eval_str=True).parameters.values()
        types = typing.get_type_hints(cls.__init__)
        return {
            parameter.name: parameter.replace(annotation=types.get(parameter.name, parameter.annotation))
            for parameter in parameters
            if parameter.kind is not Parameter.VAR_KEYWORD
        }

    @property
    def spec(self) -> EncodingSpec:
        parameters = dict(self.parameters_given)
        return EncodingSpec(name=self.name, parameters=parameters, cached_keys_until=self.cached_keys_until)

    def in_layer(self, index: int) -> "Encoding":
        """The encoding of layer ``index``: itself, or a new one if every layer has separate parameters."""
        return self._copy_with({name: getattr(self, name) for name in self.tied}) if self.per_layer else self

    def sized(self, **sizes: Value) -> Self:
        """A fresh encoding for other sizes (heads, head_size ...), those that its constructor has."""
        return self._copy(**{name: size for name, size in sizes.items() if name in self.parameters_given})

    # the hooks

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """Token embeddings with the positions in them."""
        return x_BTC

    def rotate(self, x_BHTD: Tensor, positions: Positions, role: Literal["query", "key"]) -> Tensor:
        """Queries or keys, rotated to their positions."""
        return x_BHTD

    def scores(self, q_BHTD: Tensor, k_BHSD: Tensor, queries: Positions, keys: Positions) -> Term | None:
        """The term to add to ``q k^T``, before it is scaled or after, as the term's operator says."""
        return None

    def values(self, queries: Positions, keys: Positions) -> Term | None:
        """The term to add to ``probs v``."""
        return None

    @property
    def added_width(self) -> int:
        """Channels that `embed` joins to the embeddings; the definition projects them all to the model's width."""
        return 0

    # limits

    @property
    def trained_length(self) -> int | None:
        """Number of positions that its table was trained for; None where the formula has no end."""
        return None

    @property
    def limit(self) -> int | None:
        """Longest input, which the graph's length guard enforces; None: any length."""
        return self.trained_length

    @property
    def beyond(self) -> Beyond:
        """What happens to positions past ``trained_length``."""
        return "error"

    @property
    def boundaries(self) -> list[int]:
        """Lengths at which the formula changes; the parity grid looks at each, one before and one after."""
        return sorted({length for length in (self.trained_length, self.limit) if length is not None})

    @property
    def cached_keys_until(self) -> int | None:
        """Row length beyond which cached keys of shorter calls must be computed again; None: never."""
        return None

    def clipped(self) -> "Encoding":
        """``--beyond clip``: the same parameters, with distances beyond the table clipped to its last."""
        raise self._unfit("clip", "table of distances")

    def interpolated(self, length: int, *, overhead: int = 0) -> "Encoding":
        """``--beyond interpolate``: the table stretched linearly to ``length`` positions, its first and last row kept.

        ``overhead``: rows at the table's start that only padding uses (`posexport.nn.position_ids`); they are kept and
        do not count in ``length``.
        """
        raise self._unfit("interpolate", "table of absolute positions")

    def _unfit(self, beyond: Beyond, needed: str) -> PosexportError:
        reason = "it takes inputs of any length as it is" if self.limit is None else f"that needs a {needed}"
        return PosexportError(f"--beyond {beyond} does not fit the encoding {self.name}: {reason}")

    def _copy(self, **changes: Value) -> Self:
        """A new encoding of the same class and constructor arguments, except ``changes``."""
        return type(self)(**{**self.parameters_given, **changes})

    def _copy_with(self, parameters: Mapping[str, nn.Parameter | nn.Module], **changes: Value) -> Self:
        """`_copy` that shares ``parameters`` (or modules that hold them), by name."""
        fresh = self._copy(**changes).train(self.training)
        for name, parameter in parameters.items():
            setattr(fresh, name, parameter)
        return fresh

    @staticmethod
    def _drawn(*shape: int) -> nn.Parameter:
        """A table as BERT initialises it: normal, standard deviation 0.02 (Devlin et al. 2019, released code)."""
        return nn.Parameter(torch.empty(shape).normal_(std=0.02))


def oracle_of(operator: Operator, *names: str) -> Callable[..., Array]:
    """The operator's oracle, row by row of the batch, for a hook with a term of exactly the operator's formula.

    ``names``: the parameters that are the operator's tensors, in its order.
    """

    def oracle(*tensors: Array, params: Mapping[str, Array], **_: Any) -> Array:
        *inputs, qpos_BT, kpos_BS = tensors
        # q and k, or the probabilities: those that the operator reads
        read = inputs[: len(operator.takes)]
        rows = range(len(inputs[0]))
        return np.concatenate(
            [
                operator.oracle(
                    *(x[row : row + 1] for x in read),
                    *(params[name] for name in names),
                    np.broadcast_to(qpos_BT, (len(rows), qpos_BT.shape[1]))[row],
                    np.broadcast_to(kpos_BS, (len(rows), kpos_BS.shape[1]))[row],
                )
                for row in rows
            ]
        )

    return oracle


@dataclass(frozen=True)
class Entry:
    """A registered encoding. ``oracles`` maps a hook to its float64 definition."""

    name: str
    cls: type[Encoding]
    oracles: Mapping[str, Callable[..., Array]]
    cases: Sequence[Mapping[str, Any]]
    summary: str
    source: str


#: the encodings by name; a package adds one by an entry point of the group ``posexport.encodings``
ENCODINGS: Registry[Entry] = Registry(
    "encodings", Entry, {name: f"posexport.encodings.{file}" for name, file in FILES.items()}
)
E_ = TypeVar("E_", bound=type[Encoding])


def register(
    name: str,
    *,
    cases: Sequence[Mapping[str, Any]],
    source: str,
    control: bool = False,
    **oracles: Callable[..., Array],
) -> Callable[[E_], E_]:
    """Put an encoding into the catalogue, with its evidence.

    An oracle per overridden hook, in float64 NumPy, ``params`` being the module's state by name:

    ``embed(x_BTC, pos_BT, *, params, **case)``
    ``rotate(x_BHTD, pos_BT, *, params, **case)``
    ``scores(q_BHTD, k_BHSD, qpos_BT, kpos_BS, *, params, **case)``
    ``values(probs_BHTS, qpos_BT, kpos_BS, *, params, **case)``

    An encoding of more ``axes`` than one gets positions [B, T, axes], -1 for a token without coordinates.
    Each is written from the source in another form than the module and calls nothing of its file. A ``control`` acts
    through no hook at all; nothing else may. Raises ValueError if the hooks with an oracle are not exactly the hooks
    the class overrides, if there are no hooks, no cases, no docstring, or if the name exists already.
    """

    def add(cls: E_) -> E_:
        overridden = sorted(cls.hooks)
        if overridden != sorted(oracles):
            raise ValueError(f"{name}: hooks {overridden} are overridden, oracles are given for {sorted(oracles)}")
        if bool(overridden) == control:
            raise ValueError(f"{name}: overrides {overridden}; a control has no hook, any other encoding at least one")
        if not cases:
            raise ValueError(f"{name}: no cases, nothing would test it")
        if ENCODINGS.is_taken(name, by=cls.__module__):
            raise ValueError(f"{name} is registered twice")
        if "__doc__" not in vars(cls) or not cls.__doc__:
            raise ValueError(f"{name}: no docstring to take its summary from")
        cls.name = name
        ENCODINGS[name] = Entry(name, cls, dict(oracles), list(cases), cls.__doc__.strip().splitlines()[0], source)
        return cls

    return add
