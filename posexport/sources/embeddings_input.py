"""``--input embeddings``: a source as two graphs, from ids to ``inputs_embeds`` and from these to the outputs."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import InputSpec
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder
from posexport.models.embeddings_input import EmbeddingsInput, TokenTable
from posexport.models.forward_decoder import IDS, ForwardDecoder
from posexport.nn.adapted import AdaptedEmbedding
from posexport.sources.example import axis_sizes, example
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.source import Source

_M = TypeVar("_M", bound=nn.Module)
#: the largest difference of outputs, as a share of the largest output, between a call with ids and one with embeddings
_ROUNDING = 1e-4


def with_embeddings(source: Source) -> Source:
    """The source as two graphs; its module shares weights with the old one's.

    Raises:
        PosexportError: it is several graphs already, or reads its ids in other places than one table of embeddings.
    """
    module = source.module
    if source.parts:
        files = ", ".join(graph.file for graph in source.part_specs)
        raise PosexportError(f"--input embeddings is for models of one graph, {source.name} is {files}: leave it out")
    if isinstance(module, ForwardDecoder):
        raise PosexportError(
            f"--input embeddings: the KV cache of {source.name} is inserted by a graph pass, which reads ids; leave it "
            "out"
        )
    if source.inputs[0].name != IDS:
        raise PosexportError(
            f"--input embeddings is for models of texts, {source.name} takes {source.inputs[0].name}: leave it out"
        )
    module, table = with_table(module, source.inputs, source.limits.trace_sizes, f"--input embeddings of {source.name}")
    split = EmbeddingsInput(module, table)
    return msgspec.structs.replace(
        source, module=split.eval(), outputs=[*source.outputs, split.outputs[-1]], parts=split.parts
    )


def with_table(module: _M, inputs: list[InputSpec], traced: Mapping[str, int], what: str) -> tuple[_M, TokenTable]:
    """A copy of ``module`` that also accepts embeddings as ``input_ids``, and its token embedding; weights are shared.

    ``traced``: sizes of axes of a call. ``what``: names it in messages.

    Raises:
        PosexportError: it reads its ids in other places than one table of embeddings.
    """
    tensors = example(inputs, axis_sizes(inputs, traced))
    copy = copy_with_same_weights(module)
    expected, tables = _called(copy, tensors)
    if len(tables) != 1:
        raise PosexportError(
            f"{what}: one table of token embeddings is needed, the model has {len(tables)}; it takes ids alone"
        )
    ((path, embedding),) = tables.items()
    if isinstance(embedding, AdaptedEmbedding):
        raise PosexportError(f"{what}: an adapter changes the token embeddings; leave --adapters out")
    table = _replaced(copy, path, embedding)
    why = f"{what}: the model reads ids for more than their embeddings; it takes ids alone"
    try:
        got, _ = _called(copy, {**tensors, IDS: table(tensors[IDS])})
    except (IndexError, RuntimeError, TypeError, ValueError) as err:
        raise PosexportError(why) from err
    if not all(_agree(*pair) for pair in zip(got, expected, strict=True)):
        raise PosexportError(why)
    return copy, table


def _called(module: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Sequence[Tensor], dict[str, nn.Embedding]]:
    """The outputs of a call, and the embeddings that it looks its ids up in, by their paths."""
    tables: dict[str, nn.Embedding] = {}

    def note(path: str, embedding: nn.Embedding, ids: Tensor) -> None:
        if torch.equal(ids, inputs[IDS]):
            tables[path] = embedding

    hooks = [
        submodule.register_forward_pre_hook(lambda embedding, args, path=path: note(path, embedding, args[0]))
        for path, submodule in module.named_modules()
        if isinstance(submodule, nn.Embedding)
    ]
    try:
        with torch.no_grad():
            outputs: Sequence[Tensor] = module(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, tables


def _agree(got: Tensor, expected: Tensor) -> bool:
    if not expected.is_floating_point() or not expected.numel():
        return torch.equal(got, expected)
    return got.shape == expected.shape and bool((got - expected).abs().max() <= _ROUNDING * expected.abs().max())


def _replaced(module: nn.Module, path: str, embedding: nn.Embedding) -> TokenTable:
    """Replaces ``embedding`` in ``module`` by a `TokenTable`, which takes over a factor that belongs to the table."""
    parent, _, name = path.rpartition(".")
    owner, scale = module.get_submodule(parent), 1.0
    if isinstance(owner, Decoder) and owner.config.embedding.scaled_table:
        scale, owner.scale = owner.scale, 1.0
    table = TokenTable(embedding, scale)
    setattr(owner, name, table)
    return table
