"""What every graph pass says about itself, what it gets, and what it returns."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import onnx_ir as ir

from posexport.base.bounds import Bound
from posexport.base.spec import InputSpec
from posexport.base.targets.target import Target
from posexport.errors import PosexportError
from posexport.graph.partial import Array

if TYPE_CHECKING:
    from posexport.graph.ops.spec import NodeSpec

#: purposes of passes, in the order in which they run (`posexport.graph.passes.pipeline`)
Phase = Literal["recognise", "cache", "optimise", "padding", "guard", "device", "name"]


@dataclass(frozen=True)
class PassResult:
    """``nodes``: places in the graph that changed. ``rejected``: why other places did not, each reason once.

    ``recognised``: the kinds of the places that changed, if there are several.
    """

    nodes: int = 0
    rejected: tuple[str, ...] = ()
    recognised: tuple[str, ...] = ()

    @classmethod
    def of(cls, reasons: Sequence[str | None]) -> Self:
        """Of one entry for every place that was looked at: None where it changed, else why it did not."""
        return cls(reasons.count(None), tuple(dict.fromkeys(reason for reason in reasons if reason)))


@dataclass(frozen=True)
class InsertedCache:
    """The KV cache that a pass inserts.

    Attributes:
        static: it has a capacity of slots.
        at_read: it holds keys as they are before their rotation.
    """

    static: bool = False
    at_read: bool = False


@dataclass(frozen=True)
class Context:
    """What a pass knows apart from the graph, of its target and its source (`context.of_source`).

    Attributes:
        target: where the graph will run.
        lowering: the one that ``--lowering`` asks for.
        inputs: specifications of the graph's inputs, in their order.
        output_names: of the graph, in their order.
        bounds: sizes that the graph must refuse.
        traced_attention: of a user's module, what became attention while it was traced; None for other sources.
        feeds: makes inputs of several sizes.
        specs: the records of functions by name, once lowerings are chosen.
        cache: the KV cache that a decoder which was traced without one gets; None for other graphs.
        fed: names of inputs that have a default, but for clients that feed every input that a session lists.
        static: the size of each axis of the inputs that does not vary.
    """

    target: Target
    lowering: str = "auto"
    inputs: Sequence[InputSpec] = ()
    output_names: Sequence[str] = ()
    bounds: Sequence[Bound] = ()
    traced_attention: PassResult | None = None
    feeds: Callable[[], list[Mapping[str, Array]]] = list
    specs: "Mapping[str, NodeSpec]" = field(default_factory=dict)
    cache: InsertedCache | None = None
    fed: frozenset[str] = frozenset()
    static: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def samples(self) -> list[Mapping[str, Array]]:
        """Inputs of several sizes, the largest last, made on first use."""
        return self.feeds()


class GraphPass(ABC):
    """One change of a graph that keeps what it computes.

    Attributes:
        name: what the manifest and ``only`` of `pipeline.run` call it.
        description: one line for lists and documentation.
        phase: what it is for; passes of a phase run one after the other.
        prepares: the only lowering that profits; the pass is left out where ``--lowering`` asks for another one.
        writes_copies: it writes the same for every layer, which is shared afterwards.
        is_listed_idle: the manifest has an entry also where nothing changed.
    """

    name: str
    description: str
    phase: ClassVar[Phase] = "optimise"
    prepares: str | None = None
    writes_copies: ClassVar[bool] = False
    is_listed_idle: ClassVar[bool] = True

    def concerns(self, context: Context) -> bool:
        """Whether it is for this kind of source and target; the manifest has no entry where it is not."""
        return True

    def refusal(self, target: Target) -> str | None:
        """Why no graph for ``target`` can have it; None where it can."""
        return None

    def why_not_preferred(self, target: Target) -> str | None:
        """Why it is left out although it applies, for example because it is slower; None where it is not."""
        return target.unprofitable(self.name)

    @abstractmethod
    def apply(self, model: ir.Model, context: Context) -> PassResult:
        """Rewrite ``model`` in place; returns the number of changed nodes and reasons for those left unchanged."""


class NotInsertedError(PosexportError):
    """Why a graph cannot have a KV cache, with the user's line.

    ``causal``: an attention before that line sees no later tokens.
    """

    causal = False


class NotCausalError(NotInsertedError):
    """The graph is no decoder: tokens see later ones."""


class Rule(NamedTuple):
    """A rule of onnxscript's rewriter; ``refusal`` takes the pattern's variables by name and gives a reason or None."""

    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    refusal: Callable[..., str | None]


def by_rules(rules: Mapping[str, Rule], model: ir.Model) -> PassResult:
    """Apply ``rules``, by name, with operands of commutative operators in either order."""
    from onnxscript.rewriter import pattern

    #: by the values of a match, as an order that is refused may match in the other one
    refused: dict[frozenset[int], str] = {}

    def compiled(name: str, rule: Rule) -> pattern.RewriteRule:
        def applies(_context: Any, **values: ir.Value) -> bool:
            place = frozenset(map(id, values.values()))
            reason = rule.refusal(**values)
            if reason is not None:
                refused[place] = reason
            else:
                refused.pop(place, None)
            return reason is None

        return pattern.RewriteRule(rule.pattern, rule.replacement, applies, name=name)

    applied = pattern.RewriteRuleSet([compiled(*rule) for rule in rules.items()], commute=True).apply_to_model(model)
    return PassResult.of([*[None] * applied, *refused.values()])
