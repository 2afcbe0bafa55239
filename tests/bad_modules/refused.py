"""Modules that PyTorch's exporter does not convert, or converts wrongly, by the names of the rows in `export.messages`.

NAME() causes the message, NAME_mended() is written as the row says.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

V, D, H = 17, 12, 3
IDS = torch.arange(32).reshape(2, 16) % V
LONG = torch.arange(64).reshape(2, 32) % V


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D)


class Resized(nn.Module):
    """A table of positions, interpolated to the length as images' are."""

    antialias = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(1, D, 7, 1))

    def forward(self, x):
        size = (x.shape[1], 1)
        rows = F.interpolate(self.table, size=size, mode="bicubic", antialias=self.antialias)
        return x + rows[0, :, :, 0].t()


class PlainlyResized(Resized):
    antialias = False


def antialiased_resize():
    return Resized(), {"x": torch.randn(2, 16, D)}


def antialiased_resize_mended():
    return PlainlyResized(), {"x": torch.randn(2, 16, D)}


class ScaledByLength(Embedded):
    """Longer inputs are scaled by another factor, as dynamic NTK does."""

    def forward(self, input_ids):
        x = self.token(input_ids)
        if x.shape[1] > 14:
            x = x * 0.5
        return x


class ScaledByWhere(Embedded):
    def forward(self, input_ids):
        x = self.token(input_ids)
        tokens = torch.ones_like(input_ids).cumsum(1)[:, -1:, None]
        return torch.where(tokens > 14, x * 0.5, x)


def branch_on_length():
    return ScaledByLength(), {"input_ids": IDS}


def branch_on_length_mended():
    return ScaledByWhere(), {"input_ids": IDS}


class DoubledByIds(Embedded):
    """A branch by whether an id occurs."""

    def forward(self, input_ids):
        x = self.token(input_ids)
        if (input_ids == 3).any():
            x = 2 * x
        return x


class DoubledByWhere(Embedded):
    def forward(self, input_ids):
        x = self.token(input_ids)
        return torch.where((input_ids == 3).any(1)[:, None, None], 2 * x, x)


def branch_on_values():
    return DoubledByIds(), {"input_ids": IDS}


def branch_on_values_mended():
    return DoubledByWhere(), {"input_ids": IDS}


class Reflected(nn.Module):
    """Short inputs cannot be padded by reflection, and are padded by zeros where that fails."""

    side = 14

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.pad = nn.Embedding(V, D), nn.ReflectionPad1d(self.side)
        self.convolution = nn.Conv1d(D, D, 2 * self.side + 1)

    def padded(self, x):
        try:
            return self.pad(x)
        except Exception:  # noqa: BLE001 (as packages write it)
            return F.pad(x, (self.side, self.side))

    def forward(self, input_ids):
        return self.convolution(self.padded(self.token(input_ids).mT)).mT


class PaddedByZeros(Reflected):
    def padded(self, x):
        return F.pad(x, (self.side, self.side))


def caught_error():
    return Reflected(), {"input_ids": LONG}


def caught_error_mended():
    return PaddedByZeros(), {"input_ids": LONG}


class Segments(Embedded):
    """Tokens are averaged over four segments: the exporter writes the traced segments as constants."""

    def forward(self, input_ids):
        return F.interpolate(self.token(input_ids).transpose(1, 2), 4, mode="area")


class PooledSegments(Embedded):
    def forward(self, input_ids):
        return F.adaptive_avg_pool1d(self.token(input_ids).transpose(1, 2), 4)


def fails_at_run_time():
    return Segments(), {"input_ids": IDS}


def fails_at_run_time_mended():
    return PooledSegments(), {"input_ids": IDS}


class MaskOfNumPy(Embedded):
    """A causal mask made by NumPy."""

    def forward(self, input_ids):
        x = self.token(input_ids)
        seen = torch.from_numpy(np.tri(x.shape[1])).to(x.dtype)
        return seen @ x / seen.sum(1, keepdim=True)


class MaskOfTorch(Embedded):
    def forward(self, input_ids):
        x = self.token(input_ids)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril()
        return seen @ x / seen.sum(1, keepdim=True)


def fixed_length():
    return MaskOfNumPy(), {"input_ids": IDS}


def fixed_length_mended():
    return MaskOfTorch(), {"input_ids": IDS}


class Flex(nn.Module):
    """A bias by distance as the score_mod of FlexAttention."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.qkv = nn.Embedding(V, D), nn.Linear(D, 3 * D)

    def forward(self, input_ids):
        B, T = input_ids.shape
        q, k, v = self.qkv(self.token(input_ids)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v).transpose(1, 2).reshape(B, T, D)

    def attend(self, q, k, v):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(q, k, v, score_mod=lambda score, _b, _h, i, j: score - (i - j).abs())


class FloatMask(Flex):
    def attend(self, q, k, v):
        at = torch.arange(q.shape[2], device=q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=-(at[:, None] - at).abs()[None, None].to(q.dtype))


def flex_attention():
    return Flex(), {"input_ids": IDS}


def flex_attention_mended():
    return FloatMask(), {"input_ids": IDS}


class Cell(nn.Module):
    """A cell that is called for every token."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.cell = nn.Embedding(V, D), nn.GRUCell(D, D)

    def forward(self, input_ids):
        x = self.token(input_ids)
        state, states = torch.zeros_like(x[:, 0]), []
        for token in range(x.shape[1]):
            state = self.cell(x[:, token], state)
            states.append(state)
        return torch.stack(states, 1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.rnn = nn.Embedding(V, D), nn.GRU(D, D, batch_first=True)

    def forward(self, input_ids):
        return self.rnn(self.token(input_ids))[0]


def loop_over_tokens():
    return Cell(), {"input_ids": IDS}


def loop_over_tokens_mended():
    return Recurrent(), {"input_ids": IDS}


class Nested(Embedded):
    """Rows packed into a nested tensor for one operation."""

    def forward(self, input_ids):
        rows = torch.nested.nested_tensor(list(self.token(input_ids)))
        return torch.nested.to_padded_tensor(rows * 2, 0.0)


class Doubled(Embedded):
    def forward(self, input_ids):
        return self.token(input_ids) * 2


def nested_tensor():
    return Nested(), {"input_ids": IDS}


def nested_tensor_mended():
    return Doubled(), {"input_ids": IDS}


class Bessel(Embedded):
    """A Bessel function, which ONNX has no operator for."""

    def forward(self, input_ids):
        x = self.token(input_ids)
        return x * torch.special.bessel_j0(x)


class BesselBySum(Embedded):
    def forward(self, input_ids):
        x = self.token(input_ids)
        sines = torch.sin(torch.arange(16) * (torch.pi / 16))
        return x * torch.cos(x[..., None] * sines).mean(-1)


def unknown_operator():
    return Bessel(), {"input_ids": IDS}


def unknown_operator_mended():
    return BesselBySum(), {"input_ids": IDS}


class LoopOverCounted(Embedded):
    """A loop over the tokens that the mask counts."""

    def forward(self, input_ids, attention_mask):
        x = self.token(input_ids)
        out = torch.zeros_like(x)
        for t in range(int(attention_mask.sum(1).max())):
            out[:, t] = x[:, t] * 2
        return out


class Masked(Embedded):
    def forward(self, input_ids, attention_mask):
        return self.token(input_ids) * 2 * attention_mask[..., None]


class Middle(nn.Module):
    """Eight frequencies around the middle, by a formula that is too long to be followed."""

    def forward(self, x):
        n = x.shape[1]
        start = n // 2 - min(8, n) // 2 + sum(n % k // k for k in range(2, 10))
        kept = x[:, start : start + 8]
        return kept.reshape(-1, int(kept.shape[1]) * D)


class NarrowMiddle(nn.Module):
    def forward(self, x):
        padded = nn.functional.pad(x, (0, 0, 4, 4))  # eight of any length
        kept = padded.narrow(1, x.shape[1] // 2, 8)
        return kept.reshape(-1, int(kept.shape[1]) * D)


def slice_between_sizes():
    return Middle(), {"x": torch.randn(2, 16, D)}


def slice_between_sizes_mended():
    return NarrowMiddle(), {"x": torch.randn(2, 16, D)}


def value_as_size():
    return LoopOverCounted(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def value_as_size_mended():
    return Masked(), {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
