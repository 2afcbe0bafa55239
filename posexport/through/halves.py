"""Encoder and decoder of a transformers encoder-decoder, for `posexport.models.encoder_decoder`.

The decoder's attention reads posexport's KV cache and the cross-attention keys and values (`attention`). Position ids
are counted from the attention mask. transformers' cache is off.

Shape letters: B batch, T new tokens, S past and new tokens or the encoder's states, C model size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.spec import (
    BATCH,
    ENCODER_SEQUENCE,
    SAMPLES,
    SEQUENCE,
    STATES_MASK,
    Axis,
    InputSpec,
    LengthContract,
    OutputSpec,
)
from posexport.base.system.user_code import is_external, raised
from posexport.encodings.encoding import Encoding
from posexport.encodings.nope import NoPE
from posexport.errors import PosexportError
from posexport.models.decoder import Crossed
from posexport.modules.user_module import UserModule
from posexport.nn.cached_call import NotCachedError, cached_call, current
from posexport.nn.caching import Caching, KeysAndValues, Reach
from posexport.through.attention import noting
from posexport.through.planned_call import CrossingCall, Layer, PlannedCall
from posexport.through.speech import encoded_sound

IDS, STATES, POSITIONS = "decoder_input_ids", "encoder_hidden_states", "decoder_position_ids"
#: numbers of tokens and of encoder states in the call that records attention layers; they differ so that
#: cross-attention can be recognised
_TOKENS, _STATES = 5, 7


class EncoderCall(nn.Module):
    """The encoder of ``model``: maps its inputs to hidden states, and a mask of samples to the mask of the states."""

    def __init__(self, model: Any, inputs: list[InputSpec]) -> None:
        super().__init__()
        self.encoder, self.inputs = model.get_encoder(), inputs

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        mask = next((tensors[spec.name] for spec in self.inputs if spec.role == "mask" and SAMPLES in spec.axes), None)
        if mask is None:
            return {"last_hidden_state": self.encoder(**tensors, return_dict=True).last_hidden_state}
        states, states_mask = encoded_sound(self.encoder, tensors, mask)
        return {"last_hidden_state": states, STATES_MASK: states_mask}


class DecoderCall(nn.Module):
    """The decoder of ``model`` with its head: maps new tokens and the encoder's states to logits.

    ``numbered``: inside a cached call, pass ``decoder_position_ids``.
    """

    def __init__(self, model: Any, *, numbered: bool) -> None:
        super().__init__()
        self.model, self._numbered = model, numbered

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        from transformers.modeling_outputs import BaseModelOutput

        states = BaseModelOutput(last_hidden_state=tensors[STATES])
        states.attention_mask = None  # Moonshine reads it; cross-attention has posexport's mask
        call = current()
        if self._numbered and call is not None:
            tensors[POSITIONS] = call.at.queries.ids_BT
        arguments = {name: x for name, x in tensors.items() if name != STATES}
        return {"logits": self.model(**arguments, encoder_outputs=states, use_cache=False, return_dict=True).logits}


def decoder_specs(vocab: int, padding: int, width: int) -> tuple[list[InputSpec], list[OutputSpec]]:
    """The input and output specifications of `DecoderCall`."""
    axes: list[Axis] = [BATCH, SEQUENCE]
    return [
        InputSpec(name=IDS, dtype="int64", axes=axes, role="tokens", size=vocab, padding=padding),
        InputSpec(name=STATES, dtype="float32", axes=[BATCH, ENCODER_SEQUENCE, width], role="values"),
    ], [OutputSpec(name="logits", axes=[*axes, vocab])]


class Numbered(nn.Module):
    """Replaces a decoder's position embedding: inside a `PlannedCall`, position ``p`` is row ``p + offset``.

    transformers' code computes positions from the length of its KV cache, which is not used here.
    """

    def __init__(self, embedding: nn.Module, table: str, offset: int) -> None:
        super().__init__()
        self.own, self._table, self._offset = embedding, table, offset

    @property
    def rows(self) -> int:
        """The number of positions in the table."""
        return int(getattr(self.own, self._table).shape[0]) - self._offset

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        call = current()
        if isinstance(call, PlannedCall):
            return F.embedding(call.at.queries.ids_BT + self._offset, getattr(self.own, self._table))
        embedded: Tensor = self.own(*args, **kwargs)
        return embedded


def numbered(model: Any, user: UserModule) -> int | None:
    """Replace the decoder's position table by `Numbered`.

    Returns:
        The number of positions in the table; None for a decoder without a table.

    Raises:
        NotCachedError: the decoder's positions are not consecutive rows of a table.
    """
    # a decoder that is a complete model (speech-encoder-decoder) has the table in a submodule
    inner = (module for module in model.get_decoder().modules() if hasattr(module, "embed_positions"))
    decoder = next(inner, model.get_decoder())
    embedding = getattr(decoder, "embed_positions", None)
    if embedding is None:
        return None
    # record the position embeddings of a call with the positions 0, 1, ...
    recorded: list[Tensor] = []
    hook = embedding.register_forward_hook(lambda _, __, output: recorded.append(output))
    _call(user, _noted_ids(user))
    hook.remove()
    name = next((name for name in ("weight", "weights") if isinstance(getattr(embedding, name, None), Tensor)), None)
    if name is None or not recorded:
        raise NotCachedError("it numbers its tokens by code that takes no positions")
    # find them in the table: the first row is the offset
    table, rows_TC = getattr(embedding, name), recorded[0].reshape(-1, _TOKENS, recorded[0].shape[-1])[0]
    starts = [start for start in range(4) if torch.equal(table[start : start + _TOKENS], rows_TC)]
    if len(starts) != 1:
        raise NotCachedError("the rows of its table of positions are not one after another")
    decoder.embed_positions = Numbered(embedding, name, starts[0])
    return int(decoder.embed_positions.rows)


def layers_of(user: UserModule) -> list[Layer]:
    """The attention layers of a decoder, in call order."""
    with noting() as layers:
        _call(user, _noted_ids(user))
    return layers


def _noted_ids(user: UserModule) -> Tensor:
    """Ids without the padding id: with it, some types compute other position ids."""
    spec = user.inputs[0]
    assert spec.size is not None
    return torch.full((1, _TOKENS), spec.size - 1 if spec.padding != spec.size - 1 else spec.size - 2)


def _call(user: UserModule, ids_1T: Tensor) -> None:
    """Call the decoder without a KV cache."""
    width = user.inputs[1].axes[-1]
    assert isinstance(width, int)
    try:
        with torch.no_grad():
            user.module(**{IDS: ids_1T, STATES: torch.zeros(1, _STATES, width)})
    except PosexportError:
        raise
    except Exception as err:
        if is_external(err):
            raise
        raise NotCachedError(
            f"its decoder cannot be called with an encoder's states alone: it raised {raised(err)}"
        ) from err


class ThroughEncoder(nn.Module):
    """A transformers encoder as `posexport.models.sides.Side`.

    ``limits`` apply to the decoder too. ``states_axis`` is the axis of the encoder's states: a number for images of
    one size.
    """

    def __init__(self, user: UserModule, limits: LengthContract, states_axis: Axis = ENCODER_SEQUENCE) -> None:
        super().__init__()
        self.user, self._limits, self._no_encoding = user, limits, NoPE()
        self.states_axis, self.makes_mask = states_axis, len(user.outputs) > 1

    @property
    def inputs(self) -> list[InputSpec]:
        return list(self.user.inputs)

    @property
    def encodings(self) -> list[Encoding]:
        """No encoding of posexport's: transformers' code computes the positions."""
        return [self._no_encoding]

    @property
    def contracts(self) -> list[LengthContract]:
        return [self._limits]

    def forward(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        answer: tuple[Tensor, ...] = self.user(**inputs)
        return answer


@dataclass(frozen=True)
class HalfSizes:
    """Sizes of the decoder (`posexport.models.sides.Sizes`)."""

    vocab: int
    padding_id: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int


class ThroughHalf(nn.Module):
    """A transformers decoder as `posexport.models.sides.Half`, with logits; ``layers``: its attention layers."""

    def __init__(self, user: UserModule, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.user, self._layers = user, list(layers)
        #: the kind of KV cache; `posexport.sources.prepare` changes it
        self.caching = Caching()
        self._no_encoding = NoPE()
        tokens, states = user.inputs
        self_attention, cross = ([layer for layer in layers if layer.cross is far] for far in (False, True))
        shapes = tuple({(layer.kv_heads, layer.size) for layer in kind} for kind in (self_attention, cross))
        if len(self_attention) != len(cross) or len(shapes[0]) != 1 or len(shapes[1]) != 1:
            raise NotCachedError(
                "its layers differ in their attention, and each must have one to its tokens and one to the states"
            )
        (kv_heads, size), (heads, far_size) = *shapes[0], *shapes[1]
        if size != far_size:
            raise NotCachedError(f"its heads have the sizes {size} and {far_size}, and must have one")
        width = states.axes[-1]
        assert isinstance(width, int)
        assert tokens.size is not None
        self.config = HalfSizes(tokens.size, tokens.padding, width, len(self_attention), heads, kv_heads, size)

    @property
    def encodings(self) -> list[Encoding]:
        """No encoding of posexport's: transformers' code computes the positions."""
        return [self._no_encoding] * self.config.layers

    @property
    def width(self) -> int:
        return self.config.hidden

    def crossed(self, states_BSC: Tensor) -> list[KeysAndValues]:
        """The cross-attention keys and values of every layer, computed from the encoder's states.

        A call with one placeholder token computes them; its other outputs are not part of the graph.
        """
        ids_B1 = torch.zeros((states_BSC.shape[0], 1), dtype=torch.int64, device=states_BSC.device)
        mask_B1 = torch.ones_like(ids_B1)
        call = CrossingCall(Reach.by_mask(mask_B1, 1, Caching()), mask_B1, None, plan=self._layers)
        with cached_call(call):
            self.user.module(**{IDS: ids_B1, STATES: states_BSC})
        self._seen([])
        return call.present

    def forward(
        self, ids_BT: Tensor, mask_BS: Tensor | None, past: Sequence[KeysAndValues] | None, memory: Crossed
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Logits of the new tokens, and the updated KV cache of every layer."""
        mask_BS = self.caching.cache.mask(ids_BT, mask_BS, past)
        at = Reach.by_mask(mask_BS, ids_BT.shape[1], self.caching)
        call = PlannedCall(at, mask_BS, past, plan=self._layers, crossed=memory.kept, crossed_mask=memory.mask_B11S)
        # placeholder states: cross-attention reads memory.kept
        states_B1C = memory.kept[0][0].new_zeros(ids_BT.shape[0], 1, self.config.hidden)
        with cached_call(call):
            (logits_BTV,) = self.user(**{IDS: ids_BT, STATES: states_B1C})
        if call.called != len(self._layers):
            raise PosexportError(f"it makes {call.called} calls of attention, and made {len(self._layers)} before")
        self._seen([None] * len(self._layers))
        return logits_BTV, call.present

    def _seen(self, attentions: list[str | None]) -> None:
        """Tell the export which attention layers the traced call has."""
        if torch.compiler.is_compiling():
            self.user.attentions[:] = attentions
