"""``--outputs hidden_states:3,7`` and ``attentions:10.5``: additional outputs of single layers."""

import re
from collections.abc import Iterator, Sequence
from typing import cast, get_args

import msgspec

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder
from posexport.models.definition import Definition
from posexport.models.encoder import Encoder
from posexport.models.layer_outputs import WithLayerOutputs, stack_of
from posexport.nn.collected import Kind, LayerOutput
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.source import Source

_FORM = "--outputs must be such as hidden_states:3,7 or attentions:10.5 (layer 10, head 5)"


def parsed(texts: Sequence[str]) -> list[LayerOutput]:
    """The outputs that users name, each once.

    Raises:
        PosexportError: a text has another form.
    """
    return list(dict.fromkeys(one for text in texts for one in _parsed(text)))


def _parsed(text: str) -> Iterator[LayerOutput]:
    kind, colon, layers = text.partition(":")
    if not colon:
        raise PosexportError(f"{_FORM}, got {text!r}")
    check_choice("--outputs", kind, get_args(Kind))
    for layer in layers.split(","):
        numbers = re.fullmatch(r"(\d+)(?:\.(\d+))?", layer.strip())
        if numbers is None or (kind == "hidden_states" and numbers[2]):
            raise PosexportError(f"{_FORM}, got {text!r}")
        yield LayerOutput(cast(Kind, kind), int(numbers[1]), int(numbers[2]) if numbers[2] else None)


def with_outputs(source: Source, texts: Sequence[str]) -> Source:
    """A source with the chosen outputs of its layers; its module shares weights with the old one.

    Raises:
        PosexportError: a text has another form, the model lacks the layer or head, or is not defined by posexport.
    """
    if not texts:
        return source
    chosen, stack, module = parsed(texts), stack_of(source.module), source.module
    if stack is None or not isinstance(module, Definition):
        raise PosexportError(
            f"--outputs {texts[0]} is for encoders and text decoders that posexport defines, {source.name} is none; "
            "convert a module whose forward returns them (docs/own-models.md), or leave it out"
        )
    for one in chosen:
        _check(one, stack, source.name)
    more = WithLayerOutputs(copy_with_same_weights(module), chosen)
    return msgspec.structs.replace(source, module=more.eval(), outputs=[*source.outputs, *more.further])


def _check(one: LayerOutput, stack: Encoder | Decoder, name: str) -> None:
    """That the model has the layer and the head; state 0 is what the first layer reads."""
    layers, heads = stack.config.layers, stack.config.heads
    last = layers if one.kind == "hidden_states" else layers - 1
    if one.layer > last:
        raise PosexportError(f"--outputs {one.kind} of {name} must be from 0 to {last}, got {one.layer}")
    if one.head is not None and one.head >= heads:
        raise PosexportError(f"--outputs: a head of {name} must be from 0 to {heads - 1}, got {one.head} in {one.name}")
