"""The declared interface of a graph, whether posexport made it, and inputs that its source lacks. Imports no torch.

Shape letters: B batch, T new tokens, S past and new tokens (of caches: the encoder's states), C model size, D head
size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posexport.base.spec import PAST, SEQUENCE, TOTAL, InputSpec
from posexport.errors import PosexportError
from posexport.proof.criterion import Array
from posexport.proof.grid.inputs import Feeds
from posexport.sources.source import Source

#: ONNX's element types by number, as ONNX Runtime writes them; only those that NumPy has
_TYPES = {1: "float", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "double"}


@dataclass(frozen=True)
class Declared:
    """One input or output. ``shape``: an int is a fixed size, a text a free one; None where the rank is open.

    ``element``: one of `_TYPES`, or None for any other.
    """

    name: str
    element: str | None
    shape: tuple[int | str, ...] | None

    def __str__(self) -> str:
        size = "any shape" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"
        return f"{self.name} {size}"


@dataclass(frozen=True)
class Signature:
    """``own``: posexport's metadata is in the graph. ``optional``: inputs that have a value when they are left out."""

    inputs: Mapping[str, Declared]
    optional: Mapping[str, Declared]
    outputs: Mapping[str, Declared]
    own: bool


def signature(model: Path) -> Signature:
    """Read from the file; PosexportError where it is no ONNX model."""
    import onnx

    try:
        proto = onnx.load(str(model), load_external_data=False)
    except Exception as err:  # protobuf's parser has exception classes without a common base
        raise PosexportError(f"{model} is not an ONNX model: {err}") from err
    graph = proto.graph
    held = {tensor.name for tensor in graph.initializer}
    inputs = [_declared(value) for value in graph.input]
    return Signature(
        {declared.name: declared for declared in inputs if declared.name not in held},
        {declared.name: declared for declared in inputs if declared.name in held},
        {declared.name: declared for declared in map(_declared, graph.output)},
        any(entry.key.startswith("posexport.") for entry in proto.metadata_props),
    )


def _declared(value: "object") -> Declared:
    from onnx import ValueInfoProto

    assert isinstance(value, ValueInfoProto)
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return Declared(value.name, _TYPES.get(tensor.elem_type), None)
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
    return Declared(value.name, _TYPES.get(tensor.elem_type), shape)


POSITIONS = "position_ids"


@dataclass(frozen=True)
class Call:
    """The tokens of a call, [B, T], and the mask of past and new ones, [B, S].

    ``overhead``: of an encoder that counts all but padding ids, the positions that no token has; None: of a decoder.
    """

    ids_BT: Array
    mask_BS: Array
    overhead: int | None

    @staticmethod
    def of(feeds: Feeds, source: Source) -> "Call":
        """Read from what ``source`` takes."""
        tokens = token_input(source.inputs)
        ids_BT = np.zeros((1, 0), dtype=np.int64) if tokens is None else feeds[tokens.name]
        mask = next((s for s in source.inputs if s.role == "mask" and s.axes[-1] in (SEQUENCE, TOTAL)), None)
        past = next((feeds[s.name].shape[s.axes.index(PAST)] for s in source.inputs if PAST in s.axes), 0)
        if mask is None:
            mask_BS = np.ones((ids_BT.shape[0], past + ids_BT.shape[1]), dtype=np.int64)
        else:
            mask_BS = feeds[mask.name].astype(np.int64)
        return Call(ids_BT, mask_BS, None if source.promises.causal else source.promises.position_offset)

    @property
    def past(self) -> int:
        """The number of tokens that are in the cache."""
        return int(self.mask_BS.shape[1] - self.ids_BT.shape[1])

    @property
    def places_T(self) -> Array:
        """The indices of the new tokens, padding included."""
        return np.arange(self.past, self.mask_BS.shape[1], dtype=np.int64)

    @property
    def positions_BT(self) -> Array:
        """The position ids that transformers uses by default: by the mask (decoders), by index, or by ids (RoBERTa)."""
        if self.overhead is None:
            counted_BS: Array = np.maximum(self.mask_BS.cumsum(1) - 1, 0)
            return counted_BS[:, self.past :]
        if self.overhead == 0:
            return np.broadcast_to(self.places_T, self.ids_BT.shape)
        real_BT = self.ids_BT != self.overhead - 1
        counted_BT: Array = real_BT.cumsum(1) * real_BT
        return counted_BT + self.overhead - 1


def positions(call: Call, position_ids: Array | None, port: Declared) -> Array:
    """The feed of ``position_ids``: the call's where not negative, else counted; by place if rows share them."""
    if shared(port):
        return call.places_T if port.shape is not None and len(port.shape) == 1 else call.places_T[None]
    if position_ids is None:
        return call.positions_BT
    return np.where(position_ids < 0, call.positions_BT, position_ids)


def unread(port: Declared, states_BSC: Array) -> Array:
    """For keys or values [B, H, S, D] of a call without a past, which takes the states instead."""
    shape = port.shape or ()
    rows, length = states_BSC.shape[:2]
    sizes = [size if isinstance(size, int) else (rows, 1, length, 1)[axis] for axis, size in enumerate(shape)]
    return np.zeros(sizes, dtype=np.float32)


def shared(port: Declared) -> bool:
    """Whether all rows have the same positions."""
    return port.shape is not None and (len(port.shape) == 1 or port.shape[0] == 1)


#: the values of further inputs that transformers' models have by default
DERIVED: Mapping[str, Callable[[Call], Array]] = {
    "token_type_ids": lambda call: np.zeros_like(call.ids_BT),
    "attention_mask": lambda call: call.mask_BS,
    "decoder_attention_mask": lambda call: call.mask_BS,
    "use_cache_branch": lambda call: np.array([call.past > 0]),
    "cache_position": lambda call: call.places_T,
    "logits_to_keep": lambda _: np.zeros((), dtype=np.int64),  # all
    "num_logits_to_keep": lambda _: np.zeros((), dtype=np.int64),
}


def token_input(inputs: Sequence[InputSpec]) -> InputSpec | None:
    """Returns the spec of the ids of new tokens."""
    return next((spec for spec in inputs if spec.role == "tokens" and SEQUENCE in spec.axes), None)
