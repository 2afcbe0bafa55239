"""The modules of sentence-transformers that make vectors of a transformer's hidden states, or scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from posexport.base.spec import TextRules
from posexport.errors import PosexportError
from posexport.nn.heads import Head
from posexport.nn.hybrid import HybridEmbedding
from posexport.nn.pooling import (
    DenseConfig,
    LayerNormConfig,
    Mode,
    PooledScores,
    SentenceEmbedding,
    SpladeConfig,
    StepConfig,
    TokenEmbeddings,
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A module after the pooling: a projection or layer normalisation with its folder, or the division by length."""

    dense: DenseConfig | None
    norm: LayerNormConfig | None = None
    #: of its weights, ending in ``/``
    folder: str = ""

    @property
    def config(self) -> StepConfig:
        return self.dense or self.norm


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """``below`` is the folder of config.json and weights, empty or ending in ``/``; ``width``: channels of the states.

    Without ``modes`` and ``splade`` every token has a vector.
    """

    modes: Sequence[Mode]
    steps: Sequence[Step]
    width: int
    width_key: str
    label: str
    rules: TextRules
    below: str = ""
    files: list[str] = field(default_factory=list)
    #: weights of words in place of a pooling of states
    splade: SpladeConfig | None = None
    #: elements of the vectors that tokens have beside the text's, with a weight each (BGE-M3)
    token_width: int | None = None
    #: what it gives are scores of a text or a pair of texts (CrossEncoder)
    scores: bool = False
    #: files beside the model's weights with tensors of the head, which are called FILE/TENSOR
    weight_files: tuple[str, ...] = ()
    #: files in whose place those are read
    replaced_files: tuple[str, ...] = ()
    #: names of the labels whose scores it gives, where no other file has them
    labels: list[str] = field(default_factory=list)
    #: texts are padded on the left, so that the first token of a text is not in the first slot
    first_kept: bool = False

    @property
    def task(self) -> str:
        if self.scores:
            return "sequence-classification"
        return "token-embedding" if self.rules.tokens is not None else "sentence-embedding"

    @property
    def built_as(self) -> str:
        """The task of the model below it."""
        return "features" if self.splade is None else "fill-mask"

    @property
    def folders(self) -> list[str]:
        """Folders of the steps' weights, without the transformer's folder and files."""
        folders = [step.folder for step in self.steps if step.config is not None and step.folder]
        return [folder for folder in folders if folder.rstrip("/") not in self.weight_files]


def head_of(pooling: Pooling, hidden: int, *, model: str, decoder: bool) -> Head:
    """The head that pools states or projects the states of tokens, without its weights.

    ``hidden``: channels of the states. ``model`` names the model in messages; ``decoder``: whether it is causal.

    Raises:
        PosexportError: the states have other channels than the pooling, or the model cannot do what it needs.
    """
    if decoder and pooling.rules.tokens is not None and pooling.rules.tokens.filled_to is not None:
        raise PosexportError(
            f"{pooling.label}: queries are filled up with tokens (query expansion), which is not supported for a "
            f"decoder, {model}; convert it with query expansion switched off, or --task features and pool yourself"
        )
    if pooling.width != hidden:
        raise PosexportError(
            f"{pooling.label} says {pooling.width_key} = {pooling.width}; config.json says hidden_size = {hidden}"
        )
    if pooling.rules.tokens is not None:
        return TokenEmbeddings(hidden, [step.dense for step in pooling.steps if step.dense is not None])
    steps = [step.config for step in pooling.steps]
    if (width := pooling.token_width) is not None:
        return HybridEmbedding(hidden, pooling.modes, steps, width=width, first_kept=pooling.first_kept)
    kind = PooledScores if pooling.scores else SentenceEmbedding
    return kind(hidden, pooling.modes, steps, first_kept=pooling.first_kept)


def stored_name(name: str, steps: Sequence[Step]) -> str:
    """``steps.INDEX.PARAMETER`` of the head as the folder of that step has it, ``LINEAR.PARAMETER`` as its file."""
    first, rest = name.split(".", 1)
    if first != "steps":
        return f"{first}.pt/{rest}"
    index, parameter = rest.split(".", 1)
    return steps[int(index)].folder + parameter
