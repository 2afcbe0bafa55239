"""A bidirectional LSTM over the entries of each row, which are before the padding.

Hochreiter and Schmidhuber, "Long Short-Term Memory" (Neural Computation 9(8), 1997); Graves and Schmidhuber,
"Framewise phoneme classification" (IJCNN 2005). It reads a row backwards from its last entry, whatever the batch, and
gives zeros for padding, as PyTorch's packed sequences do. In a graph it is ONNX's LSTM.

Shape letters: B batch, T entries, C channels of the input, H channels of a direction.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from posexport.nn.recurrent_node import gates_in_order

_DIRECTIONS = ("", "_reverse")


class PackedLSTM(nn.Module):
    """[B, T, C] and the number of entries of each row, at least 1, to [B, T, 2 H].

    Args:
        size: C.
        hidden: H.
        layers: each reads both directions of the one before.
    """

    def __init__(self, size: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, hidden, layers, batch_first=True, bidirectional=True)

    def forward(self, x_BTC: Tensor, count_B: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return self._as_nodes(x_BTC, count_B)
        packed = pack_padded_sequence(x_BTC, count_B.cpu(), batch_first=True, enforce_sorted=False)
        out_BTH, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x_BTC.shape[1])
        return out_BTH

    def _as_nodes(self, x_BTC: Tensor, count_B: Tensor) -> Tensor:
        batch, length = x_BTC.shape[:2]
        hidden, x_TBC = self.lstm.hidden_size, x_BTC.transpose(0, 1)
        for layer in range(self.lstm.num_layers):
            inputs = [x_TBC, *(self._stacked(names, layer) for names in (("weight_ih",), ("weight_hh",)))]
            inputs += [self._stacked(("bias_ih", "bias_hh"), layer), count_B.to(torch.int32)]
            y_T2BH = torch.onnx.ops.symbolic(
                "LSTM",
                inputs,
                {"hidden_size": hidden, "direction": "bidirectional"},
                dtype=x_BTC.dtype,
                shape=(length, 2, batch, hidden),
            )
            x_TBC = y_T2BH.transpose(1, 2).reshape(length, batch, 2 * hidden)
        return x_TBC.transpose(0, 1)

    def _stacked(self, names: tuple[str, ...], layer: int) -> Tensor:
        """Parameters of both directions, one after the other in each, with ONNX's order of gates."""
        return torch.stack(
            [
                torch.cat([gates_in_order("LSTM", getattr(self.lstm, f"{name}_l{layer}{end}")) for name in names])
                for end in _DIRECTIONS
            ]
        )
