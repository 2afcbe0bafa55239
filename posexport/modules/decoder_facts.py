"""Facts of a user's decoder that hold whoever gives it its KV cache: ids, vocabulary, limits, its source.

Shape letters: B batch, T tokens.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from posexport.base.spec import InputSpec, LengthContract
from posexport.base.system.user_code import raised
from posexport.errors import PosexportError
from posexport.models.cached_decoder import CachedDecoder
from posexport.models.forward_decoder import POSITIONS
from posexport.modules.axes.largest import LONGEST, search
from posexport.modules.user_module import UserModule
from posexport.sources import memory_mapped
from posexport.sources.source import Source, spec_of

TASK = "text-generation"


class ByForward(Protocol):
    """A decoder with a cache whose author's forward has none."""

    @property
    def limits(self) -> LengthContract: ...

    def uncached_logits(self, ids_BT: Tensor, mask_BT: Tensor, since: int = 0) -> Tensor:
        """The logits of the author's forward for tokens from ``since`` on."""
        ...


_D = TypeVar("_D", bound=ByForward)


def small(module: nn.Module) -> bool:
    """Whether a module is small enough for a copy in float64, whatever memory is free."""
    return memory_mapped.size_of(module.parameters()) <= memory_mapped.LARGE


def tokens_of(source: Source, user: UserModule) -> tuple[InputSpec, int]:
    """The input of ids, and the size of the vocabulary."""
    vocab = source.outputs[0].axes[-1]
    assert isinstance(vocab, int)
    tokens = next(spec for spec in source.inputs if spec.role == "tokens" and spec.name != POSITIONS)
    if vocab in rows_of(user.module):  # an example need not hold the last id
        tokens = msgspec.structs.replace(tokens, size=vocab)
    return tokens, vocab


def limited(source: Source, make: Callable[[LengthContract], _D]) -> tuple[_D, list[str]]:
    """A decoder within its limits, and the source's remarks, with one where ``position_ids`` limit its inputs."""
    decoder, remarks = make(source.limits), list(source.remarks)
    if any(spec.name == POSITIONS for spec in source.inputs):
        limits, remarks = _numbered(decoder, remarks)
        decoder = make(limits)
    return decoder, remarks


def as_source(source: Source, decoder: CachedDecoder, remarks: list[str]) -> Source:
    limit = decoder.limits.max_length
    return msgspec.structs.replace(
        source,
        **spec_of(decoder, TASK).facts,
        module=decoder,
        promises=decoder.promises,
        further=[length for length in source.further if limit is None or length <= limit],
        remarks=remarks,
    )


def _numbered(decoder: ByForward, remarks: list[str]) -> tuple[LengthContract, list[str]]:
    """The limits of a module with ``position_ids``, which a table of the module may limit further."""
    limits = decoder.limits

    def attempt(length: int) -> str:
        ids_1T = torch.zeros((1, length), dtype=torch.int64)
        try:
            with torch.no_grad():
                decoder.uncached_logits(ids_1T, torch.ones_like(ids_1T), since=length - 1)
        except PosexportError as err:
            return raised(err.__cause__ or err)
        return ""

    try:
        end = search(attempt, 1, limits.max_length or LONGEST)
    except MemoryError:  # how far it may go is not known
        return limits, remarks
    if end.limit is None or end.limit == limits.max_length:
        return limits, remarks
    remark = (
        f"inputs of at most {end.limit} tokens are accepted, longer ones are refused: with the {POSITIONS} of "
        f"{end.limit + 1} tokens the module raised {end.reason}"
    )
    boundaries = sorted({*(b for b in limits.boundaries if b < end.limit), end.limit})
    return msgspec.structs.replace(limits, max_length=end.limit, boundaries=boundaries), [*remarks, remark]


def rows_of(module: nn.Module) -> set[int]:
    return {submodule.num_embeddings for submodule in module.modules() if isinstance(submodule, nn.Embedding)}


def table_rows_of(module: nn.Module) -> set[int]:
    """The first sizes of parameters that a module may index, ``self.table[ids]``."""
    own = (part.parameters(recurse=False) for part in module.modules() if not type(part).__module__.startswith("torch"))
    return {len(table) for tables in own for table in tables if table.dim() > 1}
