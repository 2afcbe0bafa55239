"""The lengths a model is right for, from its encoding and its position ids."""

from collections.abc import Iterable, Sequence

import msgspec
from torch import nn

from posexport.encodings.encoding import Encoding
from posexport.nn.position_ids import PositionIds
from posexport.spec import Beyond, LengthContract


def limits_of(
    encoding: Encoding, position_ids: PositionIds | None = None, beyond: Beyond | None = None
) -> LengthContract:
    """The lengths of a model with this encoding; they change with `posexport.encodings.beyond.extend`.

    ``position_ids``: rows of the table that no real token gets do not count, where the encoding reads the ids
    (hooks ``embed`` and ``rotate``); terms of attention read distances, which have no unused rows. ``beyond``: what was
    chosen, where that is not what the encoding itself says.
    """
    overhead = position_ids.offset if position_ids is not None and reads_numbers(encoding) else 0

    def usable(length: int | None) -> int | None:
        return None if length is None else length - overhead

    return LengthContract(
        trained_length=usable(encoding.trained_length),
        max_length=usable(encoding.limit),
        beyond=beyond or encoding.beyond,
        boundaries=sorted({length - overhead for length in encoding.boundaries if length > overhead}),
    )


def together(contracts: Sequence[LengthContract]) -> LengthContract:
    """What models with these contracts allow together: the smallest limit, every boundary; else the first one's."""
    return msgspec.structs.replace(
        contracts[0],
        trained_length=_smallest(contract.trained_length for contract in contracts),
        max_length=_smallest(contract.max_length for contract in contracts),
        boundaries=sorted({boundary for contract in contracts for boundary in contract.boundaries}),
    )


def reads_numbers(encoding: Encoding) -> bool:
    """Whether the encoding acts on tokens by their position ids, not on pairs by their distance alone."""
    return "embed" in encoding.hooks or "rotate" in encoding.hooks


def limits_of_module(module: nn.Module) -> LengthContract:
    """What all encodings in a module allow together: the smallest limit, every boundary."""
    contracts = [limits_of(m) for m in module.modules() if isinstance(m, Encoding)]
    return LengthContract(
        trained_length=_smallest(e.trained_length for e in contracts),
        max_length=_smallest(e.max_length for e in contracts),
        boundaries=sorted({b for e in contracts for b in e.boundaries}),
    )


def _smallest(lengths: Iterable[int | None]) -> int | None:
    return min((length for length in lengths if length is not None), default=None)
