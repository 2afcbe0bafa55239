"""A user's decoder, which a graph pass gives a KV cache (`posexport.models.forward_decoder`).

Shape letters: B batch, T tokens, C channels, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posexport.base.spec import BATCH, SEQUENCE, LengthContract
from posexport.encodings.alibi import Alibi
from posexport.encodings.encoding import Encoding
from posexport.encodings.local_window import LocalWindow
from posexport.encodings.nope import NoPE
from posexport.graph.ops.dropped_scores import drops
from posexport.models.cached_decoder import Decoding
from posexport.models.forward_decoder import IDS, MASK, POSITIONS, ForwardDecoder, Interface
from posexport.modules.user_module import UserModule, returning
from posexport.nn import Attention, InputEncoding


class UserDecoder(ForwardDecoder):
    """A user's decoder.

    Args:
        user: the module without a cache.
        terms: of every attention, what it adds to its scores (`term_of`); none where that is not known yet.
    """

    user: UserModule

    def __init__(
        self, user: UserModule, interface: Interface, limits: LengthContract, terms: Sequence[Encoding] = ()
    ) -> None:
        self.of_last = interface.returns[0].axes[:2] != [BATCH, SEQUENCE]
        every = msgspec.structs.replace(interface.returns[0], axes=[BATCH, SEQUENCE, interface.vocab])
        user = returning(user, [every]) if self.of_last else user
        # positions are in the user's code
        super().__init__(user, interface, limits, terms or [NoPE()])

    @property
    def windows(self) -> list[int]:
        """The numbers of tokens that attentions see at most."""
        local = [encoding for encoding in self.encodings if isinstance(encoding, LocalWindow)]
        return [window.left + 1 for window in local if window.left is not None]

    @property
    def slopes(self) -> list[list[float]]:
        """The slopes of the heads, for every attention with ALiBi."""
        return [encoding.slopes for encoding in self.encodings if isinstance(encoding, Alibi)]

    @property
    def decoding(self) -> Decoding:
        """The longest inputs that are inside a window are boundaries."""
        decoding, limit = super().decoding, self._limits.max_length
        inside = {window for window in self.windows if limit is None or window <= limit}
        boundaries = sorted({*decoding.lengths.boundaries, *inside})
        return replace(decoding, lengths=msgspec.structs.replace(decoding.lengths, boundaries=boundaries))

    @property
    def author(self) -> UserModule:
        return returning(self.user, self.interface.returns)

    def called(self, ids_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """The logits of every token, also of a forward that picks the last one before it computes them."""
        if not self.of_last:
            return super().called(ids_BT, positions_BT)
        with EveryToken(ids_BT.shape):
            return super().called(ids_BT, positions_BT)

    def uncached_logits(self, ids_BT: Tensor, mask_BT: Tensor, since: int = 0) -> Tensor:
        """The logits of the author's forward, from token ``since`` on; of the last token if it returns these alone."""
        positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
        values = {IDS: ids_BT, MASK: mask_BT, POSITIONS: positions_BT}
        logits: Tensor
        (logits,) = self.author(**{name: values[of] for of, name in self.interface.names.items()})
        return logits.reshape(len(ids_BT), -1, logits.shape[-1])[:, -1:] if self.of_last else logits[:, since:]


class EveryToken(TorchFunctionMode):
    """Inside the block ``x[:, -1]`` of x [B, T, C] is x, if its sizes are ``shape`` [B, T]."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self._shape = tuple(shape)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Part of the protocol of PyTorch's function modes."""
        if func is Tensor.__getitem__ and _picks_last(args[0], args[1], self._shape):
            return args[0]
        return func(*args, **(kwargs or {}))


def _picks_last(x: Tensor, index: Any, shape: tuple[int, ...]) -> bool:
    """Whether ``x[index]`` is the last row of the second axis, whole, with that axis or without."""
    if not (x.is_floating_point() and x.ndim == 3 and x.shape[:2] == shape):
        return False
    if not isinstance(index, tuple) or len(index) < 2 or any(item != slice(None) for item in (index[0], *index[2:])):
        return False
    picked = range(x.shape[1])[index[1]] if isinstance(index[1], int | slice) else index[1]
    return (list(picked) if isinstance(picked, range | list) else [picked]) in ([-1], [x.shape[1] - 1])


def term_of(by_distance: NDArray[Any] | None) -> Encoding:
    """What an attention adds to its scores for the distances 0, 1, 2 ... [H or 1, D]: a window, ALiBi, or neither."""
    if by_distance is None or by_distance.shape[1] < 2:
        return NoPE()
    dropped = drops(by_distance).all(0)
    bias_HD = by_distance[:, : int(dropped.argmax())] if dropped.any() else by_distance
    distances = bias_HD.shape[1]
    if dropped.any() and not bias_HD.any():
        return LocalWindow(left=distances - 1, right=0)
    slopes_H = bias_HD[:, 0] - bias_HD[:, 1] if distances > 1 else np.zeros(1)
    relative_HD = bias_HD - bias_HD[:, :1] + slopes_H[:, None] * np.arange(distances)
    linear = np.abs(relative_HD).max(initial=0) <= 1e-6 * np.abs(slopes_H).max() * distances
    if dropped.any() or len(slopes_H) < 2 or not linear or (slopes_H <= 0).any():
        return NoPE()
    encoding = Alibi(heads=len(slopes_H), variant="causal")
    encoding.slopes = [float(slope) for slope in slopes_H]  # as measured, perhaps not the published ones
    return encoding


def encodings_of(module: nn.Module) -> list[Encoding]:
    """The encodings of all layers of `posexport.nn.Attention`; of those without one, what acts on the embeddings."""
    inputs = [submodule.encoding for submodule in module.modules() if isinstance(submodule, InputEncoding)]
    layers = [submodule.encoding for submodule in module.modules() if isinstance(submodule, Attention)]
    return [inputs[0] if inputs and not encoding.hooks else encoding for encoding in layers]
