"""A decoder's KV cache between calls: each call's outputs are the next one's inputs, on the device, without a copy.

Shape letters: B rows, T new tokens, S tokens read so far, V vocabulary.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime import denormals
from posexport.runtime.binding import run_bound, run_placed
from posexport.runtime.chain import Chain, Link
from posexport.runtime.ort_values import run, to_array, to_value
from posexport.runtime.providers import make_session
from posexport.spec import BATCH, CAPACITY, PAST, PRESENT, SEQUENCE, TOTAL, InputSpec, OutputSpec
from posexport.targets.dtypes import BY_NAME, BY_ORT_TYPE
from posexport.targets.providers import DEFAULT_PROVIDER, HOST, provider_named

if TYPE_CHECKING:
    from onnxruntime import OrtValue

LOGITS = "logits"
#: what inputs of these roles hold at tokens of text
_OF_TEXT = {"positions": -1, "blocks": 0}
Ids = NDArray[np.int64]
S = TypeVar("S", InputSpec, OutputSpec)


def left_padded(prompts: Sequence[Sequence[int]], padding: int) -> tuple[Ids, Ids]:
    """Prompts in one array, each at its end, and the mask of their tokens; both [B, T]."""
    length = max(map(len, prompts))
    ids_BT = np.full((len(prompts), length), padding, dtype=np.int64)
    keep_BT = np.zeros_like(ids_BT)
    for row, prompt in enumerate(prompts):
        ids_BT[row, length - len(prompt) :] = prompt
        keep_BT[row, length - len(prompt) :] = 1
    return ids_BT, keep_BT


@dataclass(frozen=True)
class Ports:
    """Which inputs and outputs of a decoder are which; ``present`` names what becomes each of ``past``.

    ``fixed``: inputs that are the same in every call (what is attended to). ``text``: positions that cannot be left
    out, and marks of images, which text has none of.
    """

    tokens: InputSpec
    mask: InputSpec
    past: list[InputSpec]
    present: list[str]
    vocab: int
    fixed: list[InputSpec]
    text: list[InputSpec] = field(default_factory=list)

    def of(self, needed: Collection[str]) -> "Ports":
        """Without fixed inputs that are not among ``needed``."""
        return replace(self, fixed=[spec for spec in self.fixed if spec.name in needed])

    @property
    def static(self) -> bool:
        """A static KV cache: one buffer of a capacity."""
        return CAPACITY in self.past[0].axes


def ports(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> Ports | None:
    """The ports of a decoder with a KV cache and logits; None where the model is none."""
    tokens = _only(spec for spec in inputs if spec.role == "tokens" and spec.axes == [BATCH, SEQUENCE])
    mask = _only(spec for spec in inputs if spec.role == "mask" and spec.axes == [BATCH, TOTAL])
    logits = _only(spec for spec in outputs if spec.name == LOGITS and spec.axes[:2] == [BATCH, SEQUENCE])
    past = [spec for spec in inputs if spec.role == "cache"]
    present = [spec.name for spec in outputs if set(PRESENT) & set(spec.axes)]
    if tokens is None or mask is None or logits is None or not past or len(past) != len(present):
        return None
    fixed = [spec for spec in inputs if spec not in (tokens, mask) and spec.role not in ("cache", *_OF_TEXT)]
    varies = any({SEQUENCE, TOTAL, PAST} & set(spec.axes) for spec in fixed)
    vocab = logits.axes[-1]
    if varies or not isinstance(vocab, int):
        return None
    text = [spec for spec in inputs if spec.role in _OF_TEXT and spec.default is None]
    return Ports(tokens, mask, past, present, vocab, fixed, text)


def of_text(ports: Ports, ids_BT: Ids) -> dict[str, Ids]:
    """That the mask counts the positions of tokens (of M-RoPE all three, [3, B, T]), and that none is of an image."""
    shapes = [(*(axis for axis in spec.axes if isinstance(axis, int)), *ids_BT.shape) for spec in ports.text]
    return {
        spec.name: np.full(shape, _OF_TEXT[spec.role], ids_BT.dtype)
        for spec, shape in zip(ports.text, shapes, strict=True)
    }


def _only(specs: Iterable[S]) -> S | None:
    """The one spec; None where there are more or none."""
    listed = list(specs)
    return listed[0] if len(listed) == 1 else None


def renamed(ports: Ports, link: Link, embedding: Link | None = None) -> Ports:
    """The same by the names that one graph gives them, without what is fixed.

    ``embedding``: the graph whose answer the tokens become before.
    """
    inputs = {whole: name for name, whole in link.input_names.items()}
    if embedding is not None:
        (whole,) = embedding.output_names.values()
        inputs[ports.tokens.name] = inputs[whole]
    outputs = {whole: name for name, whole in link.output_names.items()}
    tokens, mask, *past = (_rename(spec, inputs) for spec in (ports.tokens, ports.mask, *ports.past))
    text = [_rename(spec, inputs) for spec in ports.text]
    if any(spec.name == mask.name and spec.default is not None for spec in link.inputs):
        mask = msgspec.structs.replace(mask, default=1)
    present = [outputs[name] for name in ports.present]
    return replace(ports, tokens=tokens, mask=mask, past=past, present=present, fixed=[], text=text)


def _rename(spec: InputSpec, names: Mapping[str, str]) -> InputSpec:
    return msgspec.structs.replace(spec, name=names[spec.name])


class Cache:
    """What a session knows of the tokens read so far, for every row. ``mask_BS``: 1 for each token, 0 for padding.

    ``room``: the capacity of a static KV cache in tokens, padding included. ``fixed``: arrays for the inputs of that
    name, a row each; the graphs before the last one run on them once, here. What ONNX Runtime raises passes as it is.
    """

    def __init__(
        self,
        chain: Chain,
        ports: Ports,
        *,
        rows: int,
        room: int = 0,
        fixed: Mapping[str, NDArray[Any]] | None = None,
        provider: str = DEFAULT_PROVIDER,
    ) -> None:
        last = chain.links[-1]
        device = provider_named(provider).device
        self._session, self._device, self._room = last.session, device, room
        self._provider, self._gathers = provider, dict[tuple[str, int], GatherRows]()
        self._embedding = chain.embedding(ports.tokens.name)
        self._ports = renamed(ports, last, self._embedding)
        self._last = None if device == HOST else LastToken(provider, self._logits_type())
        before = chain.before_last(fixed or {}, self._embedding)
        self._fixed = {name: self._on_device(array) for name, array in before.items()}
        #: the row of the fixed inputs that each row began as
        self._origin_B = np.arange(rows)
        self.clear(rows)

    def _logits_type(self) -> str:
        """ONNX Runtime's name of the logits' element type."""
        types = {value.name: value.type for value in self._session.get_outputs()}
        return BY_ORT_TYPE[types[LOGITS]].ort

    def reopen(self, rows: int, room: int) -> None:
        """Forget all tokens; a static KV cache has room for so many from now on."""
        self._room = room
        self.clear(rows)

    def clear(self, rows: int) -> None:
        self.mask_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        self.ids_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        sizes = {BATCH: rows, PAST: 0, CAPACITY: self._room}
        self._held: dict[str, OrtValue] = {}
        for spec in self._ports.past:
            shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
            self._held[spec.name] = self._on_device(np.zeros(shape, BY_NAME[spec.dtype].numpy))

    def _on_device(self, array: NDArray[Any]) -> "OrtValue":
        # what is empty has no place on a device
        return to_value(array, self._device if array.size else HOST)

    @property
    def slots(self) -> int:
        """Tokens read so far, padding included."""
        return int(self.mask_BS.shape[1])

    @property
    def tokens_B(self) -> Ids:
        """Tokens read so far, row by row, without padding."""
        counts: Ids = self.mask_BS.sum(1)
        return counts

    def read(self, ids_BT: Ids, keep_BT: Ids) -> NDArray[Any]:
        """Read more tokens of every row, and give the logits after the last of them, [B, V].

        What ONNX Runtime raises passes as it is, and then nothing was read.
        """
        mask_BS = np.concatenate((self.mask_BS, keep_BT), 1)
        arrays = {self._ports.tokens.name: self._embedded(np.ascontiguousarray(ids_BT)), self._ports.mask.name: mask_BS}
        arrays |= of_text(self._ports, ids_BT)
        logits, *present = self._bound(arrays) if self._ports.mask.default is None else self._unbound(arrays)
        if not self._ports.static:  # else it holds what was given, and the arrays whose memory that is
            self._held = dict(zip(self._held, present, strict=True))
        self.mask_BS, self.ids_BS = mask_BS, np.concatenate((self.ids_BS, ids_BT), 1)
        if self._last is not None:
            return self._last(logits)
        # a view would keep all of the prompt's logits
        last_BV: NDArray[Any] = to_array(logits)[:, -1].astype(np.float32)
        return last_BV

    def _embedded(self, ids_BT: Ids) -> NDArray[Any]:
        """What the last graph takes of tokens: the ids, or their embeddings."""
        if self._embedding is None:
            return ids_BT
        (name,), (output,) = self._embedding.input_names, self._embedding.output_names
        with denormals.as_zero():
            (embeds_BTC,) = run(self._embedding.session, [output], {name: ids_BT})
        return embeds_BTC

    def _bound(self, arrays: Mapping[str, NDArray[Any]]) -> "list[OrtValue]":
        """Logits, and the KV cache after the call, on the device."""
        targets = self._held.values() if self._ports.static else [self._device] * len(self._held)
        outputs = {LOGITS: self._device, **dict(zip(self._ports.present, targets, strict=True))}
        return run_bound(self._session, arrays, {**self._fixed, **self._held}, outputs)

    def _unbound(self, arrays: Mapping[str, NDArray[Any]]) -> "list[OrtValue]":
        """The same for a mask that may be left out: ONNX Runtime binds no input that has a default."""
        values = {name: to_value(array) for name, array in arrays.items()} | self._fixed | self._held
        return run_placed(self._session, values, [LOGITS, *self._ports.present], self._device)

    def reorder(self, rows: Sequence[int]) -> None:
        """Row ``rows[i]`` becomes row i; one may become several. This copies, unless every row stays where it is."""
        index = np.asarray(rows)
        if np.array_equal(index, np.arange(len(self.mask_BS))):
            return
        self.mask_BS, self.ids_BS = self.mask_BS[index], self.ids_BS[index]
        for spec in self._ports.past:
            self._held[spec.name] = self._gathered(self._held[spec.name], index, spec.axes.index(BATCH))
        origin_B, self._origin_B = self._origin_B, self._origin_B[index]
        if not np.array_equal(origin_B, self._origin_B):  # beams of one prompt have the same
            # all of these begin with the row
            self._fixed = {name: self._gathered(value, index, 0) for name, value in self._fixed.items()}

    def _gathered(self, value: "OrtValue", index: NDArray[np.intp], axis: int) -> "OrtValue":
        if self._device == HOST or not all(value.shape()):
            return self._on_device(np.take(to_array(value), index, axis=axis))
        key = (value.data_type(), axis)
        if key not in self._gathers:
            self._gathers[key] = GatherRows(self._provider, BY_ORT_TYPE[value.data_type()].ort, axis)
        return self._gathers[key](value, index, self._device)

    def compact(self, rows: Sequence[int]) -> None:
        """Keep only some rows, and drop the padding that they have in common on the left. This copies."""
        self.reorder(rows)
        start = int(np.argmax(self.mask_BS.any(0)))
        if not start:
            return
        self.mask_BS, self.ids_BS = self.mask_BS[:, start:], self.ids_BS[:, start:]
        for spec in self._ports.past:
            held = to_array(self._held[spec.name])
            if self._ports.static:
                held = np.roll(held, -start, axis=spec.axes.index(CAPACITY))
            else:
                held = np.take(held, range(start, held.shape[spec.axes.index(PAST)]), axis=spec.axes.index(PAST))
            self._held[spec.name] = self._on_device(held)


class GatherRows:
    """Rows of a tensor in another order, copied on the device."""

    def __init__(self, provider: str, dtype: str, axis: int) -> None:
        import onnx.parser

        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> rows ({dtype}[] x, int64[n] rows) => '
            f"({dtype}[] y) {{y = Gather <axis = {axis}> (x, rows)}}"
        )
        self._session = make_session(model.SerializeToString(), provider=provider)

    def __call__(self, value: "OrtValue", index: NDArray[np.intp], device: str) -> "OrtValue":
        (gathered,) = run_bound(self._session, {"rows": index.astype(np.int64)}, {"x": value}, {"y": device})
        return gathered


class LastToken:
    """The last token's logits, taken on the device: those of a prefill's other tokens are not copied to the host."""

    def __init__(self, provider: str, dtype: str) -> None:
        import onnx.parser

        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> last ({dtype}[b, t, v] x) => (float[b, v] y) '
            "<int64 place = {-1}> {z = Gather <axis = 1> (x, place) y = Cast <to = 1> (z)}"
        )
        self._session = make_session(model.SerializeToString(), provider=provider)

    def __call__(self, logits: "OrtValue") -> NDArray[Any]:
        """[B, T, V] on the device to [B, V] in memory."""
        (last,) = run_bound(self._session, {}, {"x": logits}, {"y": HOST})
        last_BV: NDArray[Any] = last.numpy().copy()
        return last_BV


def refuse(task: str, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> PosexportError:
    if "generation" not in task and "speech" not in task:
        return PosexportError(
            f"this is a {task} model; generate needs a text-generation or text2text-generation one: use posexport run"
        )
    gives = ", ".join(spec.name for spec in outputs if not set(PRESENT) & set(spec.axes))
    takes = ", ".join(spec.name for spec in inputs if spec.role != "cache")
    cache = "a cache" if any(spec.role == "cache" for spec in inputs) else "no cache"
    return PosexportError(
        f"this bundle is for the task {task}: it takes {takes} and {cache}, and gives {gives}; generate needs a "
        f"decoder for text-generation, which takes input_ids, attention_mask and a cache, and gives {LOGITS}, or one "
        "behind an encoder"
    )
