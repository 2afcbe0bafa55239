"""The target of a graph: a provider or any runtime, an element type, an opset."""

from dataclasses import dataclass

from posexport.base.targets.dtypes import MODEL_DTYPE, DType
from posexport.base.targets.providers import PROVIDERS, Provider, targets
from posexport.errors import PosexportError

#: the domain of ONNX Runtime's contrib operators
MICROSOFT = "com.microsoft"
#: the version of that domain: there is one
MICROSOFT_OPSET = 1
#: the first opset with Attention, RotaryEmbedding and RMSNormalization
ATTENTION_OPSET = 23
#: the last opset with an Attention kernel in ONNX Runtime 1.32's CPU provider: of opset 25 it decomposes Attention into
#: 71 nodes or more
LAST_ATTENTION_OPSET = 24
#: the first opset with nonpad_kv_seqlen of Attention, and with TensorScatter, which writes to a static cache
KEPT_KEYS_OPSET = 24
#: the first opset with blocked and 4-bit DequantizeLinear and QuantizeLinear
BLOCKED_OPSET = 21
#: the target of graphs of standard operators, for any runtime
PORTABLE = "portable"


def target_names() -> tuple[str, ...]:
    """What ``--target`` accepts; of the providers that packages add, `Target` checks whether they are targets."""
    return (PORTABLE, *targets(), *PROVIDERS.packages)


@dataclass(frozen=True)
class Target:
    """The facts that lowerings and graph passes decide by.

    Attributes:
        name: ``portable``, for any runtime of standard ONNX operators, or a provider of ONNX Runtime.
        inline: the graph is for runtimes without functions and Scan, whichever the target.
        steps: most calls are decode steps, one new token per call with a KV cache.
        longest, shortest: the most (None: any number) and the fewest queries of a row, so that no branch is written for
            other numbers.
        most_scores, least_scores: the most (None: any number) and the fewest elements of the scores [B, H, T, S] of
            one attention.
        dtype: of the floating-point weights and activations.
        clients_have: contrib operators that every client of the layout has, for any target.
        keep_float: glob patterns of weights that are not quantised: they are not joined with others.
    """

    name: str = PORTABLE
    opset: int = 18
    inline: bool = False
    steps: bool = False
    longest: int | None = None
    shortest: int = 1
    most_scores: int | None = None
    least_scores: int = 0
    dtype: DType = MODEL_DTYPE
    clients_have: frozenset[str] = frozenset()
    keep_float: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name != PORTABLE and PROVIDERS.get(self.name) not in targets().values():
            raise PosexportError(f"unknown target {self.name!r}; known: {', '.join((PORTABLE, *targets()))}")

    @property
    def provider(self) -> Provider | None:
        """The provider that the graph is for; None for a portable one."""
        return targets().get(self.name)

    @property
    def microsoft(self) -> bool:
        """Contrib operators of ONNX Runtime may be in the graph."""
        return self.provider is not None and self.provider.contrib

    @property
    def flat(self) -> bool:
        """The graph has no functions, no Scan and no Loop."""
        return self.inline or (self.provider is not None and self.provider.flat)

    @property
    def whole_blocks(self) -> bool:
        """DequantizeLinear reads blocks of weights of constant sizes that are multiples of a block."""
        return self.provider is not None and self.provider.whole_blocks

    @property
    def waits_to_branch(self) -> bool:
        """A condition that the device computes makes the host wait for it."""
        return self.provider is not None and self.provider.waits_to_branch

    @property
    def bias_multiple(self) -> int:
        """Attention with a bias is fused over queries and keys of a multiple of this; 1: over any."""
        return 1 if self.provider is None else self.provider.bias_multiples.get(self.dtype.name, 1)

    def may_use(self, operator: str) -> bool:
        """Whether the contrib operator ``operator`` may be in the graph."""
        return self.microsoft or operator in self.clients_have

    def needs(self, opset: int, what: str) -> str | None:
        """Why an operator of a later opset cannot be used; None where it can."""
        return None if self.opset >= opset else f"{what} needs opset {opset}, the graph has {self.opset}"

    @property
    def no_attention(self) -> str | None:
        """Why ai.onnx Attention is not for graphs of this opset; None where it is."""
        if self.opset > LAST_ATTENTION_OPSET:
            return (
                f"ONNX Runtime's kernels for ai.onnx Attention end at opset {LAST_ATTENTION_OPSET}, the graph has "
                f"{self.opset}"
            )
        return self.needs(ATTENTION_OPSET, "ai.onnx Attention")

    def needs_microsoft(self, what: str) -> str | None:
        """Why an operator of ONNX Runtime's cannot be used; None where it can."""
        if self.microsoft:
            return None
        having = [name for name, provider in targets().items() if provider.contrib]
        return f"{what} is ONNX Runtime's own operator; use --target {' or '.join(having)}"

    def needs_kernel(self, operator: str, domain: str = "") -> str | None:
        """Why the provider cannot compute ``operator`` in the graph's type; None where it can, and for any runtime."""
        opset = MICROSOFT_OPSET if domain == MICROSOFT else self.opset
        if self.provider is None or self.provider.has_kernel(operator, domain, opset, self.dtype):
            return None
        return f"on {self.provider.label} ONNX Runtime has no {self.dtype.name} kernel for {operator}"

    def unprofitable(self, graph_pass: str) -> str | None:
        """Why a pass that applies is left out for the provider; None where it pays, or where nothing is known."""
        return None if self.provider is None else self.provider.unprofitable.get(graph_pass)
