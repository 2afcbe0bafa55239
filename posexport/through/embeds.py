"""A decoder of token ids as one of their embeddings."""

from collections.abc import Sequence
from typing import Any

import msgspec

from posexport.base.spec import InputSpec
from posexport.modules.user_module import by_name
from posexport.sources.source import Source
from posexport.through.decoder import EmbedsDecoder, ThroughDecoder
from posexport.through.inputs import forward_parameters
from posexport.through.module import TransformersModule
from posexport.through.states_decoder import StatesDecoder


def embeds_decoder(
    source: Source,
    text: TransformersModule,
    embed: Any,
    name: str,
    kind: type[EmbedsDecoder],
    more: Sequence[InputSpec],
    streams: int,
) -> EmbedsDecoder:
    """The decoder of ``source`` (`decoder_source`) with embeddings as its input.

    Args:
        source: the source of the decoder with token ids.
        text: the module of the decoder without a cache.
        embed: the embedding layer.
        name: the name of the input.
        kind: the class of the decoder.
        more: its further inputs.
        streams: vectors in an embedding (`posexport.through.towers.Tower`).
    """
    decoder = source.module
    assert isinstance(decoder, ThroughDecoder)
    ids, *others = text.inputs
    tokens = msgspec.structs.replace(ids, name=name, dtype="float32", role="values", size=None, padding=0)
    tokens = msgspec.structs.replace(tokens, axes=[*ids.axes, embed.weight.shape[-1]])
    inputs = [tokens, *others, *(spec for spec in more if spec.name in forward_parameters(text.model))]
    user = by_name(source.name, text.with_inputs(inputs), inputs, decoder.user.outputs)
    tokens = msgspec.structs.replace(tokens, axes=[*ids.axes, streams * embed.weight.shape[-1]])
    arguments: list[Any] = [user, decoder.layers, tokens, decoder.vocab, decoder.decoding.lengths]
    if isinstance(decoder, StatesDecoder):
        kind = type(f"States{kind.__name__}", (kind, StatesDecoder), {})
        arguments.append(decoder.shapes)
    result = kind(*arguments).eval()
    result.more = more
    return result
