"""Decoders as packages write them: Falcon, GPT-Neo and transformer-lens get a KV cache, Whisper a remark."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.modules.decoder import UserDecoder
from posexport.modules.live_module import module_source
from posexport.modules.with_cache import with_cache
from tests.modules.test_plain_decoders import IDS, LONGEST, C, H, V, converted, source_of
from tests.small import in_short

D = C // H


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Falcon(nn.Module):
    """One KV head, a feed-forward layer parallel to attention, and rotations or ALiBi by the mask's running sum."""

    def __init__(self, alibi: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.alibi, self.word, self.head = alibi, nn.Embedding(V, C), nn.Linear(C, V, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(C) for _ in range(2))
        self.qkv, self.out = (nn.ModuleList(nn.Linear(C, n, bias=False) for _ in range(2)) for n in (C + 2 * D, C))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(C, 48), nn.GELU(), nn.Linear(48, C)) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, (batch, length) = self.word(input_ids), input_ids.shape
        seen = torch.ones(length, length, dtype=torch.bool).tril() & attention_mask[:, None, None].bool()
        causal = torch.zeros(batch, 1, length, length, dtype=x.dtype).masked_fill(~seen, torch.finfo(x.dtype).min)
        at = ((attention_mask.cumsum(-1) - 1) * attention_mask)[:, None]
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / H) for head in range(H)])
        bias = (slopes[..., None] * at).reshape(batch * H, 1, length).to(x.dtype)
        for norm, qkv, out, mlp in zip(self.norms, self.qkv, self.out, self.mlp, strict=True):
            y = norm(x)
            fused = qkv(y).view(batch, length, H + 2, D)
            q, k, v = (z.transpose(1, 2) for z in (fused[..., :-2, :], fused[..., [-2], :], fused[..., [-1], :]))
            attend = self.with_alibi if self.alibi else self.with_rotations
            context = attend(q, k, v, causal, bias)
            x = x + out(context.permute(0, 2, 1, 3).reshape(batch, length, C)) + mlp(y)
        logits: Tensor = self.head(x)
        return logits

    def with_alibi(self, q: Tensor, k: Tensor, v: Tensor, causal: Tensor, bias: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2) + bias.view(len(q), H, 1, -1)) * D**-0.5
        return F.softmax(scores + causal, dim=-1, dtype=q.dtype) @ v

    def with_rotations(self, q: Tensor, k: Tensor, v: Tensor, causal: Tensor, bias: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(q.shape[2]).float(), 10000.0 ** (-torch.arange(0, D, 2).float() / D))
        cos, sin = (f(torch.cat((angles, angles), -1)).to(q.dtype) for f in (torch.cos, torch.sin))
        return F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, causal)


class GptNeo(nn.Module):
    """Global and local attention in turn, by buffers of the longest input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.wpe, self.head = nn.Embedding(V, C), nn.Embedding(LONGEST, C), nn.Linear(C, V)
        self.qkv = nn.ModuleList(nn.Linear(C, 3 * C) for _ in range(2))
        whole = torch.ones(LONGEST, LONGEST, dtype=torch.bool).tril()
        self.register_buffer("whole", whole)
        self.register_buffer("local", torch.bitwise_xor(whole, whole.tril(-4)))

    def forward(self, idx: Tensor) -> Tensor:
        length = idx.shape[1]
        x = self.wte(idx) + self.wpe(torch.arange(length))
        for qkv, seen in zip(self.qkv, (self.whole, self.local), strict=True):
            q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in qkv(x).chunk(3, -1))
            lowest = torch.tensor(torch.finfo(q.dtype).min, dtype=q.dtype)
            scores = torch.where(seen[None, None, :length, :length], q @ k.transpose(-1, -2), lowest)
            x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        logits: Tensor = self.head(x)
        return logits


class TransformerLens(nn.Module):
    """Weights [H, C, D] by einsum, tables that are parameters, a buffer for -inf, and NaN that become zeros."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.W_E, self.W_pos, self.W_U = (nn.Parameter(torch.randn(s)) for s in ((V, C), (LONGEST, C), (C, V)))
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(2, H, C, D) / 6) for _ in range(3))
        self.b_Q, self.b_K, self.b_V = (nn.Parameter(torch.randn(2, H, D)) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(2, H, D, C) / 6)
        self.register_buffer("mask", torch.ones(LONGEST, LONGEST).bool().tril())
        self.register_buffer("IGNORE", torch.tensor(-torch.inf))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.W_E[tokens, :] + self.W_pos[:length].unsqueeze(0)
        for layer in range(2):
            weights = ((self.W_Q, self.b_Q), (self.W_K, self.b_K), (self.W_V, self.b_V))
            q, k, v = (torch.einsum("bpd,hde->bphe", x, weight[layer]) + bias[layer] for weight, bias in weights)
            scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / D**0.5
            probs = torch.where(self.mask[None, None, :length, :length], scores, self.IGNORE).softmax(-1)
            probs = torch.where(torch.isnan(probs), torch.zeros_like(probs), probs)
            x = x + torch.einsum("bqhe,hed->bqd", torch.einsum("bkhe,bhqk->bqhe", v, probs), self.W_O[layer])
        return x @ self.W_U


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "falcon": Falcon,
    "falcon-alibi": partial(Falcon, alibi=True),
    "gpt-neo": GptNeo,
    "transformer-lens": TransformerLens,
}


@pytest.mark.parametrize("name", in_short(DECODERS, lambda name: name == "transformer-lens"))
def test_they_have_a_cache_of_their_kv_heads(name: str) -> None:
    source = source_of(DECODERS[name]())
    assert isinstance(source.module, UserDecoder), source.remarks
    heads = 1 if name.startswith("falcon") else H
    assert [spec.axes[1] for spec in source.inputs if spec.role == "cache"] == [heads] * 4
    assert ("windows of 4 tokens" in source.remarks[-1]) == (name == "gpt-neo")


@pytest.mark.all
@pytest.mark.parametrize("name", DECODERS)
def test_they_convert_with_proof_and_generate(name: str, tmp_path: Path) -> None:
    converted(DECODERS[name](), tmp_path, "dynamic")


class Whisper(nn.Module):
    """Causal attention to tokens, then attention to the output of an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.own, self.cross = nn.Embedding(V, C), nn.Linear(C, 3 * C), nn.Linear(C, 3 * C)

    def forward(self, tokens: Tensor, audio: Tensor) -> Tensor:
        x = self.token(tokens)
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.own(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        (q, *_), (_, k, v) = (
            [y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.cross(z).chunk(3, -1)] for z in (x, audio)
        )
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x @ self.token.weight.T


def test_a_decoder_of_an_encoder_s_output_is_told_why_it_has_no_cache() -> None:
    source = with_cache(module_source(Whisper().eval(), {"tokens": IDS, "audio": torch.randn(2, 17, C)}), None)
    assert source.task == "features"
    assert source.remarks[-1].endswith("a decoder that reads the output of an encoder gets no cache")


class Codes(nn.Module):
    """An audio language model's tokens, one id for each of K codebooks, [B, K, T], and their logits [B, K, T, V]."""

    def __init__(self) -> None:
        super().__init__()
        self.tables, self.own = nn.ModuleList(nn.Embedding(V, C) for _ in range(2)), nn.Linear(C, 3 * C)

    def forward(self, codes: Tensor) -> Tensor:
        x = torch.stack([table(codes[:, book]) for book, table in enumerate(self.tables)]).sum(0)
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.own(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return torch.stack([x @ table.weight.T for table in self.tables], 1)


def test_a_decoder_of_codebooks_is_told_why_it_has_no_cache() -> None:
    source = with_cache(module_source(Codes().eval(), {"codes": torch.randint(0, V, (3, 2, 9))}), None)
    assert source.task == "features"
    assert source.remarks[-1].endswith("one id for each token; got codes int64 [batch_size, 2, sequence_length]")
