"""What export and proof need to know of an encoder, read off its definition."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from posexport.encodings.base import HOOKS, Encoding
from posexport.models.encoder import Encoder
from posexport.models.heads import Head
from posexport.models.task import EncoderModel
from posexport.sources.base import Source
from posexport.sources.envelope import envelope_of
from posexport.spec import ENCODER_SEQUENCE, EncodingSpec


def encoder_source(
    model: EncoderModel,
    *,
    name: str,
    kind: Literal["builtin", "huggingface"],
    task: str,
    sha256: str,
    longest: int | None = None,
    files: dict[str, Path] | None = None,
    remarks: Sequence[str] = (),
) -> Source:
    """The source of a definition of ours. ``longest``: where its inputs end although its encoding takes longer ones."""
    encoder, head = model.encoder, model.head
    assert isinstance(encoder, Encoder)
    assert isinstance(head, Head)
    encoding, numbering = encoder.encoding, encoder.embeddings.numbering
    envelope = envelope_of(encoding, numbering)
    if longest is not None:
        limit = longest if envelope.limit is None else min(longest, envelope.limit)
        boundaries = sorted({*(length for length in envelope.boundaries if length < limit), limit})
        trained = limit if envelope.trained is None else min(limit, envelope.trained)
        envelope = msgspec.structs.replace(envelope, limit=limit, trained=trained, boundaries=boundaries)
    between_tokens = any(getattr(type(encoding), hook) is not getattr(Encoding, hook) for hook in HOOKS[1:])
    if encoder.config.cross_attention and between_tokens:
        # its terms measure distances to the other sequence's tokens too
        envelope = msgspec.structs.replace(envelope, limited_axes=[*envelope.limited_axes, ENCODER_SEQUENCE])
    return Source(
        name=name,
        kind=kind,
        module=model.eval(),
        inputs=model.inputs,
        outputs=head.outputs,
        envelope=envelope,
        encoding=EncodingSpec(name=encoding.name, parameters=dict(encoding.parameters_given)),
        task=task,
        sha256=sha256,
        shift_invariant=encoding.shift_invariant,
        padding_invariant=encoding.padding_invariant,
        reads_first_token=head.reads_first_token,
        overhead=numbering.overhead if encoder.embeddings.encoding is not None else 0,
        files=files or {},
        remarks=list(remarks),
    )
