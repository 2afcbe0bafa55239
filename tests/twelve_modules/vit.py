"""A ViT whose table of positions is interpolated to the image, [B, 3, H, W]."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        nn.init.normal_(self.qkv.weight, std=0.3)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Block(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim, num_heads), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, patch_size=7, grid=5, embed_dim=60, depth=2, num_heads=5):
        super().__init__()
        self.patch_size, self.grid = patch_size, grid
        self.patch_embed = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.randn(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + grid * grid, embed_dim))
        self.blocks = nn.ModuleList(Block(embed_dim, num_heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(embed_dim), nn.Linear(embed_dim, 11)

    def interpolate_pos_encoding(self, h, w):
        class_pos_embed, patch_pos_embed = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        dim = self.pos_embed.shape[-1]
        patch_pos_embed = F.interpolate(
            patch_pos_embed.reshape(1, self.grid, self.grid, dim).permute(0, 3, 1, 2), size=(h, w), mode="bicubic"
        )
        return torch.cat([class_pos_embed, patch_pos_embed.permute(0, 2, 3, 1).reshape(1, -1, dim)], dim=1)

    def forward(self, x):
        B, _, H, W = x.shape
        h, w = H // self.patch_size, W // self.patch_size
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(B, -1, -1), x], dim=1) + self.interpolate_pos_encoding(h, w)
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(x)
        return {"logits": self.head(x[:, 0]), "patches": x[:, 1:]}


def make():
    return VisionTransformer(), {"x": torch.randn(2, 3, 28, 42)}
