"""A decoder's KV cache between calls: outputs of a call become inputs of the next on the device, without a copy.

Shape letters: B rows, T new tokens, S tokens read so far, V vocabulary.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.base.spec import (
    BATCH,
    CAPACITY,
    CARRIED,
    LOGITS,
    NUM_LOGITS,
    PAST,
    SEQUENCE,
    TOTAL,
    InputSpec,
    OutputSpec,
    carried,
)
from posexport.base.targets.dtypes import BY_NAME, BY_ORT_TYPE, DType
from posexport.base.targets.providers import DEFAULT_PROVIDER, HOST, provider_named
from posexport.errors import PosexportError
from posexport.run import wrapped_session
from posexport.run.captured import CapturedSession, CapturedStep
from posexport.run.chain import Chain, Link
from posexport.run.ort_values import run, run_bound, run_placed, to_array, to_value

if TYPE_CHECKING:
    from onnxruntime import OrtValue

    from posexport.run.on_device import GatherRows, LastToken
    from posexport.run.pictures_in_prompts import Pictures

#: the most elements of the logits of all tokens of a chunk (256 MB of float32)
_LOGITS = 1 << 26
#: values of inputs with these roles for text tokens
_OF_TEXT = {"positions": -1, "blocks": 0}
Ids = NDArray[np.int64]
S = TypeVar("S", InputSpec, OutputSpec)


def left_padded(prompts: Sequence[Sequence[int]], padding: int) -> tuple[Ids, Ids]:
    """Prompts in one array, each at its end, and the mask of their tokens; both [B, T]."""
    length = max(map(len, prompts))
    ids_BT = np.full((len(prompts), length), padding, dtype=np.int64)
    keep_BT = np.zeros_like(ids_BT)
    for index, prompt in enumerate(prompts):
        ids_BT[index, length - len(prompt) :] = prompt
        keep_BT[index, length - len(prompt) :] = 1
    return ids_BT, keep_BT


@dataclass(frozen=True)
class DecoderInterface:
    """Inputs and outputs of a decoder by their roles.

    Attributes:
        tokens: ids of the new tokens.
        mask: attention mask over past and new tokens.
        past: inputs of the cache, and of states between tokens.
        present: names of their outputs, in the order of ``past``.
        vocab: size of the vocabulary.
        fixed: inputs that are the same in every call, for example encoder states.
        text: inputs with one value for all text tokens: position ids (-1) and image marks (0).
        adapters: the input with the LoRA adapter of each row, which has a default; None: there is none.
    """

    tokens: InputSpec
    mask: InputSpec
    past: list[InputSpec]
    present: list[str]
    vocab: int
    fixed: list[InputSpec]
    text: list[InputSpec] = field(default_factory=list)
    adapters: InputSpec | None = None

    @property
    def of_rows(self) -> list[InputSpec]:
        """The fixed inputs and the adapters."""
        return self.fixed if self.adapters is None else [*self.fixed, self.adapters]

    def of(self, needed: Collection[str]) -> "DecoderInterface":
        """A copy without fixed inputs outside ``needed``."""
        return replace(self, fixed=[spec for spec in self.fixed if spec.name in needed])

    @property
    def static(self) -> bool:
        """Whether the KV cache is static: a buffer of fixed capacity."""
        return any(CAPACITY in spec.axes for spec in self.past)


def decoder_interface(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> DecoderInterface | None:
    """The roles of the inputs and outputs; None if the model is no decoder with a KV cache and logits."""
    tokens = _only(spec for spec in inputs if spec.role == "tokens" and spec.axes == [BATCH, SEQUENCE])
    mask = _only(spec for spec in inputs if spec.role == "mask" and spec.axes == [BATCH, TOTAL])
    logits = _only(spec for spec in outputs if spec.name == LOGITS and spec.axes[:2] == [BATCH, SEQUENCE])
    past = [spec for spec in inputs if spec.role in CARRIED]
    present = [spec.name for spec in carried(inputs, outputs)]
    if tokens is None or mask is None or logits is None or not past or len(past) != len(present):
        return None
    adapters = _only(spec for spec in inputs if spec.role == "adapters")
    known = (tokens, mask, adapters)
    fixed = [spec for spec in inputs if spec not in known and spec.role not in (*CARRIED, *_OF_TEXT)]
    varies = any({SEQUENCE, TOTAL, PAST} & set(spec.axes) for spec in fixed)
    vocab = logits.axes[-1]
    if varies or not isinstance(vocab, int):
        return None
    text = [spec for spec in inputs if spec.role in _OF_TEXT]
    return DecoderInterface(tokens, mask, past, present, vocab, fixed, text, adapters)


def of_text(decoder: DecoderInterface, ids_BT: Ids) -> dict[str, Ids]:
    """Feeds for ``decoder.text``: positions follow the mask (for M-RoPE [3, B, T]), no token belongs to an image."""
    shapes = [(*(axis for axis in spec.axes if isinstance(axis, int)), *ids_BT.shape) for spec in decoder.text]
    return {
        spec.name: np.full(shape, _OF_TEXT[spec.role], ids_BT.dtype)
        for spec, shape in zip(decoder.text, shapes, strict=True)
    }


def _only(specs: Iterable[S]) -> S | None:
    """The only element; None if there are none or several."""
    listed = list(specs)
    return listed[0] if len(listed) == 1 else None


def renamed(decoder: DecoderInterface, link: Link, embedding: Link | None = None) -> DecoderInterface:
    """``decoder`` with the names of one graph, without fixed inputs.

    ``embedding``: a separate graph that computes the embeddings of the tokens first.
    """
    inputs = {whole: name for name, whole in link.input_names.items()}
    if embedding is not None:
        # embeddings at the input; embeddings of every layer may follow
        inputs[decoder.tokens.name] = inputs[next(iter(embedding.output_names.values()))]
    outputs = {whole: name for name, whole in link.output_names.items()}
    tokens, mask, *past = (_rename(spec, inputs) for spec in (decoder.tokens, decoder.mask, *decoder.past))
    text = [_rename(spec, inputs) for spec in decoder.text]
    if any(spec.name == mask.name and spec.default is not None for spec in link.inputs):
        mask = msgspec.structs.replace(mask, default=1)
    present = [outputs[name] for name in decoder.present]
    return replace(decoder, tokens=tokens, mask=mask, past=past, present=present, fixed=[], text=text)


def _rename(spec: InputSpec, names: Mapping[str, str]) -> InputSpec:
    return msgspec.structs.replace(spec, name=names[spec.name])


class Cache:
    """The KV cache of a batch of rows, with the tokens read so far. ``mask_BS``: 1 for tokens, 0 for padding.

    ``room``: capacity of a static KV cache in tokens, with padding. ``fixed``: arrays for the fixed inputs and the
    adapters by name, one row each; graphs before the decoder (an encoder) run on them once, here. ``pictures``: of the
    prompts that are read.
    Errors of ONNX Runtime are not converted.
    """

    #: a cache that calls another tool's graph (`posexport.proof.foreign.runner`) reads none
    _pictures: "Pictures | None" = None
    #: whether memory allows a call on a whole prompt, since it computes the logits of the last token alone; nor need
    #: another tool's graph take chunks
    _prompt_at_once = True

    def __init__(
        self,
        chain: Chain,
        decoder: DecoderInterface,
        *,
        rows: int,
        room: int = 0,
        fixed: Mapping[str, NDArray[Any]] | None = None,
        provider: str = DEFAULT_PROVIDER,
        pictures: "Pictures | None" = None,
    ) -> None:
        last = chain.links[-1]
        self._pictures = pictures
        device = provider_named(provider).device
        self._session, self._device, self._room = last.session, device, room
        self._provider = provider
        self._gathers: dict[tuple[str, int], GatherRows] = {}
        self._embedding = chain.embedding(decoder.tokens.name)
        required = {value.name for value in last.session.get_inputs()}
        decoder = renamed(decoder, last, self._embedding)
        # inputs that have a default cannot be bound
        self._decoder = replace(decoder, text=[spec for spec in decoder.text if spec.name in required])
        inputs = {whole: name for name, whole in last.input_names.items()}
        embeddings = self._embedding.output_names.values() if self._embedding is not None else ()
        self._embedding_names = [inputs[whole] for whole in embeddings]
        self._last = None if device == HOST else self._last_token()
        self._prompt_at_once = NUM_LOGITS in last.input_names
        # in the host's memory, where its reader is
        self._number = {NUM_LOGITS: to_value(np.array(1))} if self._prompt_at_once else {}
        before = chain.before_last(fixed or {}, self._embedding)
        adapted = decoder.adapters is not None and decoder.adapters.name in before
        self._binds = self._decoder.mask.default is None and not adapted
        self._fixed = {name: self._on_device(array) for name, array in before.items()}
        self._step: CapturedStep | None = None
        #: rows and slots of the captured steps
        self._stepping = (0, 0)
        #: index of the row of ``fixed`` that each row comes from
        self._origin_B = np.arange(rows)
        self.clear(rows)

    def _logits_type(self) -> DType:
        types = {value.name: value.type for value in self._session.get_outputs()}
        return BY_ORT_TYPE[types[LOGITS]]

    def _last_token(self) -> "LastToken":
        from posexport.run.on_device import LastToken

        return LastToken(self._provider, self._logits_type().ort)

    def reopen(self, rows: int, room: int) -> None:
        """Remove all tokens, and set the capacity of a static KV cache to ``room``."""
        self._room = room
        self.clear(rows)

    def clear(self, rows: int) -> None:
        self.mask_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        self.ids_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        sizes = {BATCH: rows, PAST: 0, CAPACITY: self._room}
        empty: dict[str, NDArray[Any]] = {}
        for spec in self._decoder.past:  # the reset of a state is 0
            shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
            empty[spec.name] = np.zeros(shape, BY_NAME[spec.dtype].numpy)
        if self._step is not None and self._stepping == (rows, self._room):
            self._step.begin(empty)
        else:
            self._step, self._stepping = self._captured(rows, empty), (rows, self._room)
        self._held: dict[str, OrtValue] = (
            {name: self._on_device(array) for name, array in empty.items()}
            if self._step is None
            else dict(self._step.cache)
        )

    def _captured(self, rows: int, empty: Mapping[str, NDArray[Any]]) -> CapturedStep | None:
        """Steps as a CUDA graph, in a session that captures."""
        if not isinstance(self._session, CapturedSession) or not self._room:
            return None
        arrays = self._arrays(np.zeros((rows, 1), np.int64), np.zeros((rows, self._room), np.int64))
        logits = np.zeros((rows, 1, self._decoder.vocab), self._logits_type().numpy)
        cache = {name: (output, empty[name]) for name, output in zip(empty, self._decoder.present, strict=True)}
        return self._session.step(self, arrays, cache, (LOGITS, logits))

    def _on_device(self, array: NDArray[Any]) -> "OrtValue":
        # empty tensors stay on the host
        return to_value(array, self._device if array.size else HOST)

    @property
    def slots(self) -> int:
        """Number of tokens read so far, with padding."""
        return int(self.mask_BS.shape[1])

    @property
    def tokens_B(self) -> Ids:
        """Number of tokens read so far in each row, without padding."""
        counts: Ids = self.mask_BS.sum(1)
        return counts

    def read(self, ids_BT: Ids, keep_BT: Ids) -> NDArray[Any]:
        """Run the decoder on new tokens of every row; returns the logits of the last one, [B, V].

        If ONNX Runtime raises an error, the cache is unchanged.
        """
        mask_BS = np.concatenate((self.mask_BS, keep_BT), 1)
        if self._step is not None and ids_BT.shape[1] == 1:
            wide_BS = np.pad(mask_BS, ((0, 0), (0, self._room - mask_BS.shape[1])))
            logits, present = self._step(self._arrays(ids_BT, wide_BS)), list(self._held.values())
        else:
            arrays = self._arrays(ids_BT, mask_BS)
            logits, *present = self._bound(arrays) if self._binds else self._unbound(arrays)
        for spec, value in zip(self._decoder.past, present, strict=True):
            if CAPACITY not in spec.axes or not self._binds:  # a bound static cache was written in place
                self._held[spec.name] = value
        self.mask_BS, self.ids_BS = mask_BS, np.concatenate((self.ids_BS, ids_BT), 1)
        if self._last is not None:
            return self._last(logits)
        # a view would keep all of the prompt's logits
        last_BV: NDArray[Any] = to_array(logits)[:, -1].astype(np.float32)
        return last_BV

    def _arrays(self, ids_BT: Ids, mask_BS: Ids) -> dict[str, NDArray[Any]]:
        """The decoder graph's inputs for tokens, but the cache."""
        arrays = {**self._embedded(np.ascontiguousarray(ids_BT)), self._decoder.mask.name: mask_BS}
        arrays |= of_text(self._decoder, ids_BT)
        if self._pictures is None:
            return arrays
        number_BT = self._numbers(mask_BS[:, self.slots : self.slots + ids_BT.shape[1]])
        return self._pictures.placed(arrays, self._embedding_names[0], self._decoder.text, self._origin_B, number_BT)

    def _numbers(self, keep_BT: Ids) -> Ids:
        """The number of each new token in its row, without padding; -1 for padding."""
        number_BT: Ids = np.where(keep_BT == 1, self.tokens_B[:, None] + keep_BT.cumsum(1) - 1, -1)
        return number_BT

    def prompt_read(self) -> None:
        """Called when the prompts have been read; see `posexport.run.kept_cache`."""

    def chunk_ends(self, keep_BT: Ids, step: int | None) -> list[int]:
        """Where chunks of ``step`` columns end; tokens of a picture that attend to one another are in one chunk.

        None: the largest within `_LOGITS`, if a call computes the logits of all tokens.
        """
        rows, length = keep_BT.shape
        if step is None:
            step = length if self._prompt_at_once else max(1, _LOGITS // (rows * self._decoder.vocab))
        if self._pictures is not None and any(spec.role == "blocks" for spec in self._decoder.text):
            return self._pictures.ends(self._numbers(keep_BT), step)
        return [min(start + step, length) for start in range(0, length, step)]

    def _embedded(self, ids_BT: Ids) -> dict[str, NDArray[Any]]:
        """The decoder graph's inputs for tokens: ids, or embeddings from a separate graph."""
        if self._embedding is None:
            return {self._decoder.tokens.name: ids_BT}
        (name,), outputs = self._embedding.input_names, list(self._embedding.output_names)
        with wrapped_session.denormals_as_zero():
            embeddings = run(self._embedding.session, outputs, {name: ids_BT})
        return dict(zip(self._embedding_names, embeddings, strict=True))

    def _bound(self, arrays: Mapping[str, NDArray[Any]]) -> "list[OrtValue]":
        """Logits and the new KV cache, on the device."""
        targets = [self._held[spec.name] if CAPACITY in spec.axes else self._device for spec in self._decoder.past]
        outputs = {LOGITS: self._device, **dict(zip(self._decoder.present, targets, strict=True))}
        return run_bound(self._session, arrays, {**self._fixed, **self._held, **self._number}, outputs)

    def _unbound(self, arrays: Mapping[str, NDArray[Any]]) -> "list[OrtValue]":
        """As `_bound`, with an optional mask or adapters: ONNX Runtime cannot bind inputs that have a default."""
        values = {name: to_value(array) for name, array in arrays.items()} | self._fixed | self._held | self._number
        return run_placed(self._session, values, [LOGITS, *self._decoder.present], self._device)

    def reorder(self, rows: Sequence[int]) -> None:
        """Row ``rows[i]`` becomes row i; a row may occur several times. Copies unless the order is unchanged."""
        index = np.asarray(rows)
        if np.array_equal(index, np.arange(len(self.mask_BS))):
            return
        self._step = None  # other buffers from here on
        self.mask_BS, self.ids_BS = self.mask_BS[index], self.ids_BS[index]
        for spec in self._decoder.past:
            self._held[spec.name] = self._gathered(self._held[spec.name], index, spec.axes.index(BATCH))
        origin_B, self._origin_B = self._origin_B, self._origin_B[index]
        if not np.array_equal(origin_B, self._origin_B):  # beams of one prompt share the fixed inputs
            # axis 0 of all fixed inputs is the batch
            self._fixed = {name: self._gathered(value, index, 0) for name, value in self._fixed.items()}

    def _gathered(self, value: "OrtValue", index: NDArray[np.intp], axis: int) -> "OrtValue":
        if self._device == HOST or not all(value.shape()):
            return self._on_device(np.take(to_array(value), index, axis=axis))
        key = (value.data_type(), axis)
        if key not in self._gathers:
            from posexport.run.on_device import GatherRows

            self._gathers[key] = GatherRows(self._provider, BY_ORT_TYPE[value.data_type()].ort, axis)
        return self._gathers[key](value, index, self._device)

    def compact(self, rows: Sequence[int]) -> None:
        """Keep only ``rows``, and remove left padding that they have in common. Copies."""
        self.reorder(rows)
        start = int(np.argmax(self.mask_BS.any(0)))
        if not start:
            return
        self._step = None
        self.mask_BS, self.ids_BS = self.mask_BS[:, start:], self.ids_BS[:, start:]
        for spec in self._decoder.past:
            if spec.role == "state":  # padding never changed it
                continue
            held = to_array(self._held[spec.name])
            if self._decoder.static:
                held = np.roll(held, -start, axis=spec.axes.index(CAPACITY))
            else:
                held = np.take(held, range(start, held.shape[spec.axes.index(PAST)]), axis=spec.axes.index(PAST))
            self._held[spec.name] = self._on_device(held)


def refuse(task: str, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> PosexportError:
    if "generation" not in task and "speech" not in task:
        return PosexportError(
            f"this is a {task} model; generate needs a text-generation or text2text-generation one: use posexport run"
        )
    presents = carried(inputs, outputs)
    gives = ", ".join(spec.name for spec in outputs if spec not in presents)
    takes = ", ".join(spec.name for spec in inputs if spec.role not in CARRIED)
    cache = "a cache" if any(spec.role in CARRIED for spec in inputs) else "no cache"
    return PosexportError(
        f"this bundle is for the task {task}: it takes {takes} and {cache}, and gives {gives}; generate needs a "
        f"decoder for text-generation, which takes input_ids, attention_mask and a cache, and gives {LOGITS}, or one "
        "behind an encoder"
    )
