"""Decoders as users write them, none with a class of ours: a KV cache goes through them that nobody wrote."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.runtime.session import load
from posexport.sources.live_module import module_source
from posexport.sources.plain.decoder import PlainDecoder
from posexport.sources.with_cache import with_cache

V, C, H, LONGEST = 53, 36, 6, 40
IDS = torch.randint(0, V, (2, 11), generator=torch.Generator().manual_seed(0))


class SelfAttention(nn.Module):
    """nanoGPT's, `flash`."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, H, C // H).transpose(1, 2)
        q = q.view(B, T, H, C // H).transpose(1, 2)
        v = v.view(B, T, H, C // H).transpose(1, 2)
        y = self.attend(q, k, v)
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)


class ByHand(SelfAttention):
    """nanoGPT's, where PyTorch has no flash attention."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(LONGEST, LONGEST)).view(1, 1, LONGEST, LONGEST))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.size(2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return att @ v


class Block(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module] = SelfAttention) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(C), attention(), nn.LayerNorm(C)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class NanoGpt(nn.Module):
    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(LONGEST, C)
        self.h = nn.ModuleList(block() for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(C), nn.Linear(C, V, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        b, t = idx.size()
        assert t <= LONGEST
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


def greedy(module: nn.Module, prompt: list[int], steps: int) -> list[int]:
    """The best token each time, by the whole sequence again."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(steps):
            ids.append(int(module(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def source_of(module: nn.Module, task: str | None = None):
    return with_cache(module_source(module.eval(), {"idx": IDS}), task)


@pytest.mark.parametrize("attention", [SelfAttention, ByHand])
def test_nano(attention):
    source = source_of(NanoGpt(partial(Block, attention)))
    print(source.remarks)
    assert isinstance(source.module, PlainDecoder)
    print(source.module.by_rows, source.module.plan_of_calls, source.limits)
