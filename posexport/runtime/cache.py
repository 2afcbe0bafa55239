"""A decoder's cache between calls: what one call gives is what the next one takes, where it lies, without a copy.

Shape letters: B rows, T new tokens, S tokens read so far, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.runtime.providers import make_session
from posexport.spec import BATCH, CAPACITY, PAST, PRESENT, SEQUENCE, TOTAL, InputSpec, OutputSpec

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, OrtValue

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
    """Which inputs and outputs of a decoder are which; ``present`` names what becomes each of ``past``."""

    tokens: InputSpec
    mask: InputSpec
    past: list[InputSpec]
    present: list[str]
    vocab: int

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
    others = len(inputs) - len(past) - 2 - sum(spec.role == "positions" for spec in inputs)
    if len(tokens) != 1 or len(masks) != 1 or not past or len(past) != len(present) or others or logits is None:
        return None
    vocab = logits.axes[-1]
    return Ports(tokens[0], masks[0], past, present, vocab) if isinstance(vocab, int) else None


class Cache:
    """What a session knows of the tokens read so far, for every row. ``mask_BS``: 1 for each token, 0 for padding.

    ``room``: how many tokens will be read, padding included, for a cache of fixed size; it is one buffer, which every
    call takes and gives. Raises PosexportError only in `read`: what ONNX Runtime itself says.
    """

    def __init__(
        self, session: "InferenceSession", of: Ports, *, rows: int, room: int = 0, provider: str = "cpu"
    ) -> None:
        self._session, self._of, self._device, self._room = session, of, provider, room
        self._last = None if provider == "cpu" else LastToken(provider)
        self.clear(rows)

    def clear(self, rows: int) -> None:
        """Forget all tokens."""
        self.mask_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        self.ids_BS: Ids = np.zeros((rows, 0), dtype=np.int64)
        sizes = {BATCH: rows, PAST: 0, CAPACITY: self._room}
        self._held: dict[str, OrtValue] = {}
        for spec in self._of.past:
            shape = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes]
            self._hold(spec, np.zeros(shape, spec.dtype))

    def _hold(self, spec: InputSpec, array: NDArray[Any]) -> None:
        from onnxruntime import OrtValue

        # what is empty has no place on a device
        device = self._device if array.size else "cpu"
        self._held[spec.name] = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), device, 0)

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
        binding = self._session.io_binding()
        binding.bind_cpu_input(self._of.tokens.name, np.ascontiguousarray(ids_BT))
        binding.bind_cpu_input(self._of.mask.name, mask_BS)
        for name, value in self._held.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(LOGITS, self._device, 0)
        for name, value in zip(self._of.present, self._held.values(), strict=True):
            if self._of.static:
                binding.bind_ortvalue_output(name, value)
            else:
                binding.bind_output(name, self._device, 0)
        self._session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        if not self._of.static:  # else it holds what was given, and the arrays whose memory that is
            self._held = dict(zip(self._held, present, strict=True))
        self.mask_BS, self.ids_BS = mask_BS, np.concatenate((self.ids_BS, ids_BT), 1)
        if self._last is not None:
            return self._last(logits)
        last_BV: NDArray[Any] = logits.numpy()[:, -1].copy()  # a view would keep all of the prompt's logits
        return last_BV

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
            self._hold(spec, kept)


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
        binding.bind_output("y", "cpu", 0)
        self._session.run_with_iobinding(binding)
        last_BV: NDArray[Any] = binding.get_outputs()[0].numpy().copy()
        return last_BV


def refuse(task: str, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]) -> PosexportError:
    """Why a bundle cannot generate."""
    gives = ", ".join(spec.name for spec in outputs if not set(PRESENT) & set(spec.axes))
    takes = ", ".join(spec.name for spec in inputs if spec.role != "cache")
    cache = "a cache" if any(spec.role == "cache" for spec in inputs) else "no cache"
    return PosexportError(
        f"this bundle is for the task {task}: it takes {takes} and {cache}, and gives {gives}; generate needs a "
        f"decoder for text-generation, which takes input_ids, attention_mask and a cache, and gives {LOGITS}"
    )
