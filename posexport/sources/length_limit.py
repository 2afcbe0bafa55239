"""What happens beyond the trained length: ``--beyond`` and ``--max-length``."""

import msgspec
from torch import nn

from posexport.definition.definition import Definition
from posexport.encodings.beyond import extend as extend_encodings
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.source import Source
from posexport.spec import Beyond


def with_limit(source: Source, beyond: Beyond, max_length: int | None) -> Source:
    """A source with the limit that was chosen; where encodings change with it, its module shares weights with the old.

    Raises:
        PosexportError: the choice does not fit the encoding, or the length does not fit the choice.
    """
    old = source.limits
    if max_length is not None and max_length < old.min_length:
        raise PosexportError(f"--max-length {max_length} is below the model's smallest input, {old.min_length}")
    if beyond == "error":
        module, limit = source.module, _limit(source, max_length)
    else:
        module, limit = _extended(source, beyond, max_length), max_length
    inside = sorted({b for b in [*old.boundaries, *([limit] if limit else [])] if limit is None or b <= limit})
    return msgspec.structs.replace(
        source,
        module=module,
        parts=module.parts if isinstance(module, Definition) and module is not source.module else source.parts,
        # position ids have the same end
        inputs=[msgspec.structs.replace(s, size=limit) if s.role == "positions" else s for s in source.inputs],
        limits=msgspec.structs.replace(old, max_length=limit, beyond=beyond, boundaries=inside),
    )


def _limit(source: Source, max_length: int | None) -> int | None:
    """The longest input of a model that is to end where its tables end, or before."""
    limit = source.limits.max_length
    if max_length is None or limit is None or max_length <= limit:
        return max_length or limit
    if source.by_trial:
        raise PosexportError(
            f"--max-length {max_length} is beyond the {limit} tokens that {source.name} takes; give at "
            "most that, or make its tables longer"
        )
    raise PosexportError(
        f"--max-length {max_length} is beyond the table of {limit} positions; "
        "choose what happens there with --beyond clip or --beyond interpolate"
    )


def _extended(source: Source, beyond: Beyond, max_length: int | None) -> nn.Module:
    """The module with clipped or interpolated encodings."""
    limit = source.limits.max_length
    if limit is None:
        raise PosexportError(f"--beyond {beyond} has nothing to do: {source.name} takes inputs of any length already")
    if all(submodule.limit is None for submodule in source.module.modules() if isinstance(submodule, Encoding)):
        raise PosexportError(
            f"--beyond {beyond} has nothing to change: {source.name} ends at {limit} positions because its "
            "configuration says so, not because a table ends; leave it out"
        )
    if beyond == "interpolate" and (max_length is None or max_length <= limit):
        got = "none" if max_length is None else str(max_length)
        raise PosexportError(
            f"--beyond interpolate needs a --max-length above the table's {limit} positions, got {got}"
        )
    module = copy_with_same_weights(source.module)
    positions = max_length if beyond == "interpolate" else None
    extend_encodings(module, beyond, positions, overhead=source.promises.position_offset)
    return module
