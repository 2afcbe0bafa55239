"""``--outputs hidden_states:3,7`` and ``attentions:10.5``: additional outputs of single layers.

Encoder-decoders have ``cross_attentions:2.1``; without layers these are the heads that give Whisper's times of words.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast, get_args

import msgspec

from posexport.base.options.check import check_choice
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder
from posexport.models.definition import Definition
from posexport.models.encoder import Encoder
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.models.layer_outputs import WithLayerOutputs, stack_of
from posexport.models.with_prefix import WithPrefix
from posexport.nn.collected import Kind, LayerOutput
from posexport.sources.memory_mapped import copy_with_same_weights
from posexport.sources.source import Source

_FORM = "--outputs must be such as hidden_states:3,7, attentions:10.5 (layer 10, head 5) or cross_attentions:2.1"
#: of encoder-decoders; alone it stands for the heads in a checkpoint's generation_config.json
CROSS: Kind = "cross_attentions"
GENERATION, ALIGNMENT_HEADS = "generation_config.json", "alignment_heads"


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
    chosen = parsed([_of_alignment(source) if text == CROSS else text for text in texts])
    for one in chosen:
        _check(one, _stack(source, one.kind), source.name)
    module = source.module
    assert isinstance(module, Definition)
    more = copy_with_same_weights(module)
    if isinstance(more, EncoderDecoderModel):
        more.layer_outputs = chosen
        return msgspec.structs.replace(source, module=more, outputs=more.outputs, parts=more.parts)
    more = WithLayerOutputs(more, chosen)
    return msgspec.structs.replace(source, module=more.eval(), outputs=[*source.outputs, *more.further])


def _stack(source: Source, kind: Kind) -> Encoder | Decoder:
    """The encoder or decoder whose layers have outputs of ``kind``."""
    if isinstance(source.module, WithPrefix):
        raise PosexportError(
            f"--outputs {kind}: {source.name} has virtual tokens, which have no place there; leave it out"
        )
    stack = stack_of(source.module)
    if stack is None or isinstance(source.module, EncoderDecoderModel) != (kind == CROSS):
        kinds = "encoder-decoders" if kind == CROSS else "encoders and text decoders"
        raise PosexportError(
            f"--outputs {kind} is for {kinds} that posexport defines, {source.name} is none; "
            "convert a module whose forward returns them (docs/own-models.md), or leave it out"
        )
    return stack


def _of_alignment(source: Source) -> str:
    """The heads of cross attention that follow the sound, which Whisper's checkpoints name."""
    _stack(source, CROSS)
    path = source.files.get(GENERATION)
    content: Any = {} if path is None else json.loads(path.read_bytes())
    pairs = content.get(ALIGNMENT_HEADS)
    if not pairs:
        raise PosexportError(
            f"--outputs {CROSS} without layers needs {ALIGNMENT_HEADS} in {GENERATION}, and {source.name} has none; "
            f"name layers and heads: {CROSS}:2.1,3.4 (layer 2, head 1)"
        )
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise PosexportError(
            f"{path}: {ALIGNMENT_HEADS} must be pairs of a layer and a head, as [[2, 1], [3, 4]]; got {pairs!r:.50}"
        )
    return f"{CROSS}:" + ",".join(f"{layer}.{head}" for layer, head in pairs)


def _check(one: LayerOutput, stack: Encoder | Decoder, name: str) -> None:
    """That the model has the layer and the head; state 0 is what the first layer reads."""
    layers, heads = stack.config.layers, stack.config.heads
    last = layers if one.kind == "hidden_states" else layers - 1
    if one.layer > last:
        raise PosexportError(f"--outputs {one.kind} of {name} must be from 0 to {last}, got {one.layer}")
    if one.head is not None and one.head >= heads:
        raise PosexportError(f"--outputs: a head of {name} must be from 0 to {heads - 1}, got {one.head} in {one.name}")
