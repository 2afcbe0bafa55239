"""A decoder's cache between calls: what one call gives is what the next one takes, where it lies, without a copy.

Shape letters: B rows, T new tokens, S tokens read so far, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime import denormals
from posexport.runtime.chain import Chain, Link
from posexport.runtime.providers import make_session
from posexport.spec import BATCH, CAPACITY, PAST, PRESENT, SEQUENCE, TOTAL, InputSpec, OutputSpec
from posexport.targets.providers import DEFAULT_PROVIDER, HOST, provider_named

if TYPE_CHECKING:
    from onnxruntime import OrtValue

LOGITS = "logits"
Ids = NDArray[np.int64]


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

    ``fixed``: inputs that are the same in every call (what is attended to). ``positions``: where they cannot be left
    out; -1 lets the mask count them.
    """

    tokens: InputSpec
    mask: InputSpec
    past: list[InputSpec]
    present: list[str]
    vocab: int
    fixed: list[InputSpec]
    positions: InputSpec | None = None

    @property
    def static(self) -> bool:
        """Whether the cache has places for so many tokens from the start."""
        return CAPACITY in self.past[0].axes


def ports(inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> Ports | None:
    """The ports of a decoder with a cache and logits; None where the model is none."""
    tokens = [spec for spec in inputs if spec.role == "tokens" and spec.axes == [BATCH, SEQUENCE]]
    masks = [spec for spec in inputs if spec.role == "mask" and spec.axes == [BATCH, TOTAL]]
    past = [spec for spec in inputs if spec.role == "cache"]
    present = [spec.name for spec in outputs if set(PRESENT) & set(spec.axes)]
    logits = next((spec for spec in outputs if spec.name == LOGITS and spec.axes[:2] == [BATCH, SEQUENCE]), None)
    read = [*tokens, *masks, *past]
    fixed = [spec for spec in inputs if spec not in read and spec.role != "positions"]
    strange = any({SEQUENCE, TOTAL, PAST} & set(spec.axes) for spec in fixed)
    if len(tokens) != 1 or len(masks) != 1 or not past or len(past) != len(present) or strange or logits is None:
        return None
    vocab = logits.axes[-1]
    counted = next((spec for spec in inputs if spec.role == "positions" and spec.default is None), None)
    return Ports(tokens[0], masks[0], past, present, vocab, fixed, counted) if isinstance(vocab, int) else None


def renamed(of: Ports, link: Link) -> Ports:
    """The same by the names that one graph gives them, without what is fixed."""
    own = {whole: name for name, whole in link.feeds.items()}
    given = {whole: name for name, whole in link.gives.items()}
    tokens, mask, *past = (msgspec.structs.replace(s, name=own[s.name]) for s in (of.tokens, of.mask, *of.past))
    positions = None if of.positions is None else msgspec.structs.replace(of.positions, name=own[of.positions.name])
    present = [given[name] for name in of.present]
    if any(spec.name == mask.name and spec.default is not None for spec in link.inputs):
        mask = msgspec.structs.replace(mask, default=1)
    return replace(of, tokens=tokens, mask=mask, past=past, present=present, fixed=[], positions=positions)


class Cache:
    """What a session knows of the tokens read so far, for every row. ``mask_BS``: 1 for each token, 0 for padding.

    ``room``: how many tokens will be read, padding included, for a cache of fixed size; it is one buffer, which every
    call takes and gives. ``fixed``: arrays for the inputs of that name, a row each; what comes before the last of
    several graphs is computed from them once, here. What ONNX Runtime raises passes as it is.
    """

    def __init__(
        self,
        chain: Chain,
        of: Ports,
        *,
        rows: int,
        room: int = 0,
        fixed: Mapping[str, NDArray[Any]] | None = None,
        provider: str = DEFAULT_PROVIDER,
    ) -> None:
        last = chain.links[-1]
        device = provider_named(provider).device
        self._session, self._device, self._room = last.session, device, room
        self._of = renamed(of, last)
        self._last = None if device == HOST else LastToken(provider)
        self._fixed = {name: self._on_device(array) for name, array in chain.before_last(fixed or {}).items()}
        self.clear(rows)

    def clear(self, rows: int) -> None:
        """Forget all tokens."""
        self.mask_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        self.ids_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        sizes = {BATCH: rows, PAST: 0, CAPACITY: self._room}
        self._held: dict[str, OrtValue] = {}
        for spec in self._of.past:
            shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
            self._held[spec.name] = self._on_device(np.zeros(shape, spec.dtype))

    def _on_device(self, array: NDArray[Any]) -> "OrtValue":
        from onnxruntime import OrtValue

        # what is empty has no place on a device
        device = self._device if array.size else HOST
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)

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
        arrays = {self._of.tokens.name: np.ascontiguousarray(ids_BT), self._of.mask.name: mask_BS}
        if self._of.positions is not None:
            arrays[self._of.positions.name] = np.full_like(ids_BT, -1)
        logits, *present = self._bound(arrays) if self._of.mask.default is None else self._unbound(arrays)
        if not self._of.static:  # else it holds what was given, and the arrays whose memory that is
            self._held = dict(zip(self._held, present, strict=True))
        self.mask_BS, self.ids_BS = mask_BS, np.concatenate((self.ids_BS, ids_BT), 1)
        if self._last is not None:
            return self._last(logits)
        last_BV: NDArray[Any] = logits.numpy()[:, -1].copy()  # a view would keep all of the prompt's logits
        return last_BV

    def _bound(self, arrays: Mapping[str, NDArray[Any]]) -> "list[OrtValue]":
        """Logits, and what is held after the call, where it is computed."""
        binding = self._session.io_binding()
        for name, array in arrays.items():
            binding.bind_cpu_input(name, array)
        for name, value in [*self._fixed.items(), *self._held.items()]:
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(LOGITS, self._device, 0)
        for name, value in zip(self._of.present, self._held.values(), strict=True):
            if self._of.static:
                binding.bind_ortvalue_output(name, value)
            else:
                binding.bind_output(name, self._device, 0)
        with denormals.as_zero():
            self._session.run_with_iobinding(binding)
        return list(binding.get_outputs())

    def _unbound(self, arrays: Mapping[str, NDArray[Any]]) -> "list[OrtValue]":
        """The same for a mask that may be left out: ONNX Runtime binds no input that has a default."""
        from onnxruntime import OrtValue

        given = {name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        with denormals.as_zero():
            found = self._session.run_with_ort_values(
                [LOGITS, *self._of.present], {**given, **self._fixed, **self._held}
            )
        return list(found)

    def compact(self, rows: Sequence[int]) -> None:
        """Keep only some rows, and drop the padding that they have in common on the left. This copies."""
        index = np.asarray(rows)
        self.mask_BS, self.ids_BS = self.mask_BS[index], self.ids_BS[index]
        start = int(np.argmax(self.mask_BS.any(0)))
        self.mask_BS, self.ids_BS = self.mask_BS[:, start:], self.ids_BS[:, start:]
        for spec in self._of.past:
            kept = np.take(self._held[spec.name].numpy(), index, axis=spec.axes.index(BATCH))
            if self._of.static:
                kept = np.roll(kept, -start, axis=spec.axes.index(CAPACITY))
            else:
                kept = np.take(kept, range(start, kept.shape[spec.axes.index(PAST)]), axis=spec.axes.index(PAST))
            self._held[spec.name] = self._on_device(kept)
        # all of these begin with the row
        self._fixed = {name: self._on_device(value.numpy()[index]) for name, value in self._fixed.items()}


class LastToken:
    """The last token's logits, cut out where they lie: a prompt's others are not copied from the device."""

    def __init__(self, provider: str) -> None:
        import onnx.parser

        model = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 18]> last (float[b, t, v] x) => (float[b, v] y) '
            "<int64 place = {-1}> {y = Gather <axis = 1> (x, place)}"
        )
        self._session = make_session(model.SerializeToString(), provider=provider)

    def __call__(self, logits: "OrtValue") -> NDArray[Any]:
        """[B, T, V] on the device to [B, V] in memory."""
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("x", logits)
        binding.bind_output("y", HOST, 0)
        self._session.run_with_iobinding(binding)
        last_BV: NDArray[Any] = binding.get_outputs()[0].numpy().copy()
        return last_BV


def refuse(task: str, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> PosexportError:
    """Why a bundle cannot generate."""
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
