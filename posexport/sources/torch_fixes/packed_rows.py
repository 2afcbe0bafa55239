"""``pack_padded_sequence`` in a trace: rows stay padded, and layers read their lengths.

PyTorch's exporter has no operators for a packed sequence: its size depends on the lengths. Here its data are all
tokens, [T B, C], `nn.LSTM`, `nn.GRU` and `nn.RNN` are ONNX's operators with ``sequence_lens``, and padding becomes
``padding_value``. Without ``total_length`` PyTorch cuts them to the longest row, which must be
whole here.

Issue: none known. Seen in 2.13.

Shape letters: T tokens, B batch, C channels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from posexport.sources.torch_fixes.patch import patched


@dataclass(frozen=True)
class _Rows:
    """A packed sequence: its `batch_sizes`, by which PyTorch's functions know it, and the lengths of its rows."""

    sizes_T: Tensor
    lengths_B: Tensor

    @property
    def shape(self) -> tuple[Any, Any]:
        """Returns the sizes of T and B."""
        return self.sizes_T.shape[0], self.lengths_B.shape[0]


class PackedRows:
    """The packed sequences of one trace."""

    def __init__(self) -> None:
        self._known: list[_Rows] = []

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a function of packed sequences; None for other functions."""
        if func is torch._pack_padded_sequence and not kwargs:  # noqa: SLF001 (PyTorch calls it)
            return self._pack(*args)
        if func is torch._pad_packed_sequence and not kwargs:  # noqa: SLF001
            return self._pad(*args)
        if func is Tensor.numpy and isinstance(args[0], FakeTensor) and args[0].dim() == 1 and not kwargs:
            return args[0]  # lengths, which `pack_padded_sequence` takes as an array too
        if func is Tensor.__getitem__ and isinstance(args[1], int) and (rows := self.of(args[0])) is not None:
            return rows.shape[1] if args[1] == 0 else None  # the number of rows of a layer's states
        return None

    def of(self, sizes: Any) -> _Rows | None:
        """The packed sequence of these `batch_sizes`; None where they are something else."""
        return next((rows for rows in self._known if rows.sizes_T is sizes), None)

    def _pack(self, x: Tensor, lengths_B: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        x_TBC = x.transpose(0, 1) if batch_first else x
        token_T = torch.arange(x_TBC.shape[0], device=lengths_B.device)
        sizes_T = (token_T[:, None] < lengths_B).sum(1)
        self._known.append(_Rows(sizes_T, lengths_B))
        return x_TBC.flatten(0, 1), sizes_T

    def _pad(
        self,
        data: Tensor,
        sizes_T: Tensor,
        batch_first: bool,
        padding_value: float,
        total: Any,
    ) -> tuple[Tensor, Tensor] | None:
        rows = self.of(sizes_T)
        if rows is None:
            return None
        x_TBC: Tensor = data.unflatten(0, rows.shape)  # type: ignore[no-untyped-call]
        token_T = torch.arange(rows.shape[0], device=data.device)
        behind = token_T[:, None] >= rows.lengths_B.to(data.device)
        x_TBC = x_TBC.masked_fill(behind.reshape(*behind.shape, *[1] * (x_TBC.dim() - 2)), padding_value)
        more = total - rows.shape[0]
        if not isinstance(more, int) or more:
            ends = x_TBC.new_full((more, *x_TBC.shape[1:]), padding_value)
            x_TBC = torch.cat([x_TBC, ends])
        return x_TBC.transpose(0, 1) if batch_first else x_TBC, rows.lengths_B


@contextmanager
def with_packed_rows() -> Iterator[None]:
    """Inside the block layers do not check the sizes of packed sequences, for which they make numbers of them."""
    of_all, of_lstm = nn.RNNBase.check_forward_args, nn.LSTM.check_forward_args

    def unless_packed(check: Callable[..., None]) -> Callable[..., None]:
        def checked(self: nn.RNNBase, x: Tensor, states: Any, batch_sizes: Tensor | None) -> None:
            if batch_sizes is None:
                check(self, x, states, batch_sizes)

        return checked

    with (
        patched(nn.RNNBase, "check_forward_args", unless_packed(of_all)),
        patched(nn.LSTM, "check_forward_args", unless_packed(of_lstm)),
    ):
        yield
