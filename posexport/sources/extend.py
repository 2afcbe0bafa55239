"""What happens beyond the trained length: ``--beyond`` and ``--max-length``, applied to a loaded source."""

from dataclasses import replace

import msgspec

from posexport.encodings.beyond import extend as extend_encodings
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.sources.source import Source
from posexport.spec import Beyond


def extend(source: Source, beyond: Beyond, max_length: int | None) -> Source:
    """The source with its limit set as asked; its module's encodings are changed in place where that takes it.

    Raises:
        PosexportError: the choice does not fit the encoding, or the length does not fit the choice.
    """
    old = source.envelope
    if max_length is not None and max_length < old.minimum:
        raise PosexportError(f"--max-length {max_length} is below the model's smallest input, {old.minimum}")
    if beyond == "error":
        if max_length is not None and old.limit is not None and max_length > old.limit:
            if source.kind == "python":
                raise PosexportError(
                    f"--max-length {max_length} is beyond the {old.limit} tokens that {source.name} takes; give at "
                    "most that, or make its tables longer"
                )
            raise PosexportError(
                f"--max-length {max_length} is beyond the table of {old.limit} positions; "
                "choose what happens there with --beyond clip or --beyond interpolate"
            )
        limit = max_length or old.limit
    elif old.limit is None:
        raise PosexportError(f"--beyond {beyond} has nothing to do: {source.name} takes inputs of any length already")
    elif all(m.limit is None for m in source.module.modules() if isinstance(m, Encoding)):
        raise PosexportError(
            f"--beyond {beyond} has nothing to change: {source.name} ends at {old.limit} positions because its "
            "configuration says so, not because a table ends; leave it out"
        )
    elif beyond == "clip":
        extend_encodings(source.module, "clip")
        limit = max_length
    else:
        if max_length is None or max_length <= old.limit:
            got = "none" if max_length is None else str(max_length)
            raise PosexportError(
                f"--beyond interpolate needs a --max-length above the table's {old.limit} positions, got {got}"
            )
        extend_encodings(source.module, "interpolate", max_length, overhead=source.overhead)
        limit = max_length
    inside = sorted({b for b in [*old.boundaries, *([limit] if limit else [])] if limit is None or b <= limit})
    envelope = msgspec.structs.replace(old, limit=limit, beyond=beyond, boundaries=inside)
    # positions that are given have the same end
    inputs = [msgspec.structs.replace(s, size=limit) if s.role == "positions" else s for s in source.inputs]
    return replace(source, inputs=inputs, envelope=envelope)
