"""Makes the source of a decoder that gets its KV cache by a graph pass (`posexport.graph.passes.cache`)."""

from dataclasses import replace

import msgspec
import torch

from posexport.base.targets.target import Target
from posexport.conversion.export.context import of_source
from posexport.conversion.export.messages import NotTracedError
from posexport.conversion.export.trace import as_traced, trace
from posexport.errors import PosexportError
from posexport.graph.ops.biases import is_published
from posexport.graph.passes import pipeline
from posexport.graph.passes.cache.insert import Inserted, insert_cache
from posexport.models.forward_decoder import IDS, LEAST_CHANNELS, MASK, POSITIONS, Interface
from posexport.modules.decoder import UserDecoder, encodings_of, term_of
from posexport.modules.decoder_facts import as_source, limited, tokens_of
from posexport.modules.user_module import UserModule
from posexport.nn.cached_call import NotCachedError
from posexport.sources.source import Source

#: rows and tokens of the call that checks which logits are the last token's
_ROWS, _LENGTH = 3, 9
#: opset of the graph that shows the shapes of the KV cache
_OPSET = 18


def by_pass(source: Source, user: UserModule, *, with_positions: bool = False) -> tuple[Source, str]:
    """Return the source of a decoder with an inserted KV cache, and its attentions as a string for a remark.

    The module is traced here to see whether its graph can have a cache, and the shapes of the cache. With
    ``with_positions`` its forward takes ``position_ids``, which are no input of ``source``.

    Raises:
        NotInsertedError, NotCachedError: why it cannot, with the user's line.
    """
    # how the graph's inputs are called in forward
    tokens, vocab = tokens_of(source, user)
    inputs = {spec.name for spec in source.inputs} | ({POSITIONS} if with_positions else set())
    interface = Interface(
        tokens=msgspec.structs.replace(tokens, name=IDS),
        names={IDS: tokens.name} | {name: name for name in (MASK, POSITIONS) if name in inputs},
        vocab=vocab,
        returns=list(source.outputs),
    )
    # the limits and the trace of a first decoder show the shapes of the cache
    untraced, remarks = limited(source, lambda limits: UserDecoder(user, interface, limits).eval())
    inserted = _inserted(as_source(source, untraced, remarks))
    if any(heads * min(sizes) < LEAST_CHANNELS for heads, *sizes in inserted.shapes):
        raise NotCachedError(f"keys and values of its attention have fewer than {LEAST_CHANNELS} channels")
    interface = replace(interface, shapes=inserted.shapes)
    encodings = encodings_of(user.module) or list(map(term_of, inserted.by_distance))
    decoder = UserDecoder(user, interface, untraced.limits, encodings).eval()
    if inserted.of_last:
        _check_last(decoder)
        remarks.append("its forward returns the logits of the last token, the bundle those of every new token")
    # the manifest names an encoding only where posexport knows it
    cached = as_source(source, decoder, remarks)
    known = encodings_of(user.module) or any(encoding.hooks for encoding in decoder.encodings)
    if not known or not all(map(is_published, decoder.slopes)):
        cached = msgspec.structs.replace(cached, encoding=None)
    if encodings_of(user.module):
        return cached, f"{len(inserted.shapes)} causal attention layers"
    return cached, f"{len(inserted.shapes)} causal attentions{_with_terms(decoder)}"


def _with_terms(decoder: UserDecoder) -> str:
    """Windows and ALiBi's slopes as a string."""
    sizes = " and ".join(map(str, sorted(set(decoder.windows))))
    within = f", {len(decoder.windows)} of them in windows of {sizes} tokens" if decoder.windows else ""
    unpublished = "" if all(map(is_published, decoder.slopes)) else " of the module's own slopes"
    return f"{within}, {len(decoder.slopes)} of them with ALiBi{unpublished}" if decoder.slopes else within


def _inserted(source: Source) -> Inserted:
    """Insert a KV cache into the graph of ``source``, to know what the cache holds."""
    traced = as_traced(source)
    try:
        model = trace(traced, _OPSET)
    except NotTracedError as err:
        raise NotCachedError(str(err)) from err
    limit = source.limits.max_length
    target = Target("portable", _OPSET, steps=True, longest=limit)
    pipeline.run(model, of_source(traced, target), ["recognise"])
    names = {spec.name for spec in traced.inputs}
    mask, positions = (name if name in names else None for name in (MASK, POSITIONS))
    return insert_cache(model, IDS, mask, limit, positions)


def _check_last(decoder: UserDecoder) -> None:
    """Raise NotCachedError unless the last of all tokens' logits are the logits that forward returns."""
    size = decoder.interface.tokens.size or 1
    length = min(_LENGTH, decoder.limits.max_length or _LENGTH)
    ids_BT = torch.randint(0, size, (_ROWS, length), generator=torch.Generator().manual_seed(0))
    whole_BT, at_BT = torch.ones_like(ids_BT), torch.arange(length).expand_as(ids_BT)
    with torch.no_grad():
        last_B1V = decoder.uncached_logits(ids_BT, whole_BT, length - 1)
        try:
            same = torch.allclose(decoder.called(ids_BT, at_BT)[:, -1:], last_B1V, rtol=1e-3, atol=1e-5)
        except PosexportError:  # its logits are still those of the last token
            same = False
    if not same:
        raise NotCachedError(
            "the last token that it returns logits of is not picked from [batch, sequence, channels] as x[:, -1], "
            "x[:, -1:] or x[:, [-1]]; pick it so, or return the logits of all tokens"
        )
