"""A Conformer block (Gulati et al., 2020) on [B, frames, mel]: relative shift, GLU, a depthwise convolution."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RelPositionalEncoding(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.register_buffer("div_term", torch.exp(torch.arange(0.0, d_model, 2.0) * -(math.log(10000.0) / d_model)))

    def forward(self, x):
        position = torch.arange(x.size(1) - 1, -x.size(1), -1, device=x.device).to(x.dtype)
        angle = position.unsqueeze(1) * self.div_term
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class RelPositionMultiHeadedAttention(nn.Module):
    def __init__(self, n_head, n_feat):
        super().__init__()
        self.h, self.d_k = n_head, n_feat // n_head
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(n_feat, n_feat) for _ in range(3))
        self.linear_out, self.linear_pos = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.randn(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.randn(self.h, self.d_k))

    def rel_shift(self, x):
        zero_pad = torch.zeros((*x.size()[:3], 1), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
        return x_padded[:, :, 1:].view_as(x)[:, :, :, : x.size(-1) // 2 + 1]

    def forward(self, x, pos_emb):
        n_batch = x.size(0)
        q = self.linear_q(x).view(n_batch, -1, self.h, self.d_k)
        k = self.linear_k(x).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)
        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        attn = torch.softmax(scores, dim=-1)
        x = torch.matmul(attn, v).transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k)
        return self.linear_out(x)


class ConvolutionModule(nn.Module):
    def __init__(self, channels, kernel_size):
        super().__init__()
        self.pointwise_conv1 = nn.Conv1d(channels, 2 * channels, 1)
        self.depthwise_conv = nn.Conv1d(
            channels, channels, kernel_size, padding=(kernel_size - 1) // 2, groups=channels
        )
        self.norm = nn.BatchNorm1d(channels)
        self.pointwise_conv2 = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        x = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)
        return self.pointwise_conv2(F.silu(self.norm(self.depthwise_conv(x)))).transpose(1, 2)


def feed_forward(d_model):
    return nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, 96), nn.SiLU(), nn.Linear(96, d_model))


class ConformerBlock(nn.Module):
    def __init__(self, n_mels=23, d_model=60, n_head=5, kernel_size=7):
        super().__init__()
        self.embed, self.pos_enc = nn.Linear(n_mels, d_model), RelPositionalEncoding(d_model)
        self.ffn1, self.ffn2 = feed_forward(d_model), feed_forward(d_model)
        self.norm_mha, self.self_attn = nn.LayerNorm(d_model), RelPositionMultiHeadedAttention(n_head, d_model)
        self.norm_conv, self.conv_module = nn.LayerNorm(d_model), ConvolutionModule(d_model, kernel_size)
        self.norm_final = nn.LayerNorm(d_model)

    def forward(self, mel):
        x = self.embed(mel)
        x = x + 0.5 * self.ffn1(x)
        x = x + self.self_attn(self.norm_mha(x), self.pos_enc(x))
        x = x + self.conv_module(self.norm_conv(x))
        x = x + 0.5 * self.ffn2(x)
        return self.norm_final(x)


def make():
    return ConformerBlock(), {"mel": torch.randn(2, 29, 23)}
