"""A reader of two inputs: tokens attend to features of another length, by ``nn.MultiheadAttention``."""

import torch
from torch import nn


class CrossAttentionReader(nn.Module):
    def __init__(self, vocab=61, dim=48, context_dim=37, heads=12, max_len=256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.self_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, heads, kdim=context_dim, vdim=context_dim, batch_first=True)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 7)

    def forward(self, input_ids, attention_mask, context, context_mask):
        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(pos)
        h = self.norm1(x)
        x = x + self.self_attn(h, h, h, key_padding_mask=attention_mask == 0, need_weights=False)[0]
        h = self.norm2(x)
        x = x + self.cross_attn(h, context, context, key_padding_mask=context_mask == 0, need_weights=False)[0]
        return self.head(self.norm3(x))


def make():
    inputs = {
        "input_ids": torch.randint(61, (2, 11)),
        "attention_mask": torch.ones(2, 11, dtype=torch.long),
        "context": torch.randn(2, 19, 37),
        "context_mask": torch.ones(2, 19, dtype=torch.long),
    }
    return CrossAttentionReader(), inputs
