"""Decoders as users write them, none with a class of ours: a KV cache goes through them that nobody wrote."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.base.options.recipe import CacheName
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.modules.decoder import UserDecoder
from posexport.modules.live_module import module_source
from posexport.modules.with_cache import with_cache
from posexport.run.load import load
from posexport.sources.prepare import with_kv_cache
from posexport.sources.source import Source
from tests.small import in_short

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
        _, t = idx.size()
        assert t <= LONGEST
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(C) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of neighbours, as the first Llama has them."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Gqa(nn.Module):
    KV = 2

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wo = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.wk, self.wv = (nn.Linear(C, self.KV * C // H, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, H, C // H).transpose(1, 2)
        k = self.wk(x).view(B, T, self.KV, C // H).transpose(1, 2)
        v = self.wv(x).view(B, T, self.KV, C // H).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        out: Tensor = self.wo(y.transpose(1, 2).reshape(B, T, C))
        return out


class Llama(nn.Module):
    """Angles of every call from arange."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok, self.out = nn.Embedding(V, C), nn.Linear(C, V, bias=False)
        self.attention = nn.ModuleList(Gqa() for _ in range(2))
        self.norms = nn.ModuleList(Rms() for _ in range(5))
        self.w = nn.ModuleList(nn.Linear(*sizes, bias=False) for _ in range(2) for sizes in ((C, 80), (C, 80), (80, C)))
        self.register_buffer("freqs", 1.0 / 10000 ** (torch.arange(0, C // H, 2) / (C // H)), persistent=False)

    def angles(self, T: int) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(T, device=self.freqs.device).type_as(self.freqs), self.freqs)
        return angles.cos(), angles.sin()

    def through(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        h, (cos, sin) = self.tok(tokens), self.angles(tokens.shape[1])
        for index, attention in enumerate(self.attention):
            h = h + attention(self.norms[2 * index](h), cos, sin, mask)
            gate, up, down = self.w[3 * index : 3 * index + 3]
            x = self.norms[2 * index + 1](h)
            h = h + down(F.silu(gate(x)) * up(x))
        logits: Tensor = self.out(self.norms[4](h))
        return logits

    def forward(self, tokens: Tensor) -> Tensor:
        return self.through(tokens)


class Sliced(Llama):
    """Angles of a table, for as many positions as it has."""

    def __init__(self) -> None:
        super().__init__()
        cos, sin = super().angles(LONGEST)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def angles(self, T: int) -> tuple[Tensor, Tensor]:
        return self.cos[:T], self.sin[:T]


class Masked(Sliced):
    """Causality and padding in one mask."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        T = input_ids.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=input_ids.device).tril()
        return self.through(input_ids, causal & attention_mask[:, None, None].bool())


class OfTorch(nn.Module):
    """PyTorch's own layers and a table of waves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok, self.out = nn.Embedding(V, C), nn.Linear(C, V)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(C, H, 64, batch_first=True), 2)
        angles = torch.arange(LONGEST)[:, None] / 10 ** torch.linspace(0, 3, C // 2)
        self.register_buffer("pe", torch.cat([angles.sin(), angles.cos()], 1)[None])

    def forward(self, input_ids: Tensor) -> Tensor:
        T = input_ids.size(1)
        x = self.tok(input_ids) * C**0.5 + self.pe[:, 1 : T + 1]
        mask = nn.Transformer.generate_square_subsequent_mask(T, device=x.device, dtype=x.dtype)
        logits: Tensor = self.out(self.layers(x, mask=mask, is_causal=True))
        return logits


class Convolved(NanoGpt):
    """A depthwise convolution of the tokens of before, and these alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(C, C, 3, groups=C)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx)
        x = x + self.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


class Attends(Llama):
    """Knows of attention_mask, and its attention does not."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.through(input_ids)


class Alibi(Llama):
    def forward(self, tokens: Tensor) -> Tensor:
        at = torch.arange(tokens.shape[1])
        bias = -(at[:, None] - at).to(self.freqs.dtype) / 7
        return self.through(tokens, bias.masked_fill(at > at[:, None], -torch.inf))


class Encoder(Llama):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.through(input_ids, attention_mask[:, None, None].bool())


class Cubed(SelfAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        scores = q @ k.mT / 3
        return (scores + scores**3).masked_fill(later, -1e9).softmax(-1) @ v


class ByEinsum(SelfAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        scores = torch.einsum("bhtd,bhsd->bhts", q * 0.3, k).masked_fill(later, -1e9)
        return torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v)


class ByBmm(SelfAttention):
    """Batch and heads as one axis."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, _, T, D = q.shape
        q, k, v = (x.reshape(B * H, T, D) for x in (q, k, v))
        later = torch.full((T, T), -1e9, dtype=q.dtype).triu(1)
        probs = torch.baddbmm(later.expand(B * H, T, T), q, k.transpose(1, 2), alpha=0.4).softmax(-1)
        return torch.bmm(probs, v).view(B, H, T, D)


class Opt(NanoGpt):
    """Positions from 2 on, repeated for the batch."""

    def __init__(self, attention: Callable[[], nn.Module] = SelfAttention) -> None:
        super().__init__(partial(Block, attention))
        self.wpe = nn.Embedding(LONGEST + 2, C)

    def numbers(self, idx: Tensor) -> Tensor:
        return torch.arange(2, idx.shape[1] + 2).unsqueeze(0).expand(idx.shape[0], -1)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(self.numbers(idx))
        for block in self.h:
            x = block(x)
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


class Constants(Opt):
    """Sizes that are as long as the runs in which its calls are recorded."""

    def forward(self, idx: Tensor) -> Tensor:
        fixed = [self.wpe.weight[:rows].mean(0) + torch.arange(rows).sum() / 99 for rows in (5, 6, 7, 9)]
        return super().forward(idx) + self.lm_head(torch.stack(fixed).sum(0))


class Summed(Opt):
    def numbers(self, idx: Tensor) -> Tensor:
        return torch.ones_like(idx).cumsum(1)


class SequenceFirst(OfTorch):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(C, H, 64), 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        T = input_ids.size(1)
        x = self.tok(input_ids).transpose(0, 1) + self.pe[0, :T].unsqueeze(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=x.dtype)
        logits: Tensor = self.out(self.layers(x, mask=mask).transpose(0, 1))
        return logits


DECODERS = {
    "nanogpt": NanoGpt,
    "nanogpt-by-hand": partial(NanoGpt, partial(Block, ByHand)),
    "llama": Llama,
    "llama-sliced": Sliced,
    "llama-masked": Masked,
    "torch": OfTorch,
    "einsum": partial(NanoGpt, partial(Block, ByEinsum)),
    "bmm": partial(NanoGpt, partial(Block, ByBmm)),
    "opt": Opt,
    "constants": Constants,
    "summed": Summed,
    "sequence-first": SequenceFirst,
}


def example(module: nn.Module) -> dict[str, Tensor]:
    """Of every argument of forward."""
    names = inspect.signature(module.forward).parameters
    return {name: torch.ones_like(IDS) if "mask" in name else IDS for name in names}


def source_of(module: nn.Module, task: str | None = None) -> Source:
    return with_cache(module_source(module.eval(), example(module)), task)


def alone(module: nn.Module, ids: Tensor) -> Tensor:
    """What the user's own forward gives rows of one length."""
    with torch.no_grad():
        logits: Tensor = module.eval()(**{k: torch.ones_like(ids) if "mask" in k else ids for k in example(module)})
    return logits


def greedy(module: nn.Module, prompt: list[int], steps: int) -> list[int]:
    """The best token each time, by the whole sequence again."""
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(alone(module, torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("name", in_short(DECODERS, lambda name: name == "llama"))
def test_a_decoder_has_a_cache_of_its_kv_heads(name: str) -> None:
    source = source_of(DECODERS[name]())
    assert (source.task, isinstance(source.module, UserDecoder)) == ("text-generation", True)
    heads = 2 if name.startswith("llama") else H
    for cache, axis in (("dynamic", "past_sequence_length"), ("static", "max_sequence_length")):
        inputs = with_kv_cache(source, cache, "at-write").inputs  # type: ignore[arg-type]
        assert [spec.name for spec in inputs][:3] == ["input_ids", "attention_mask", "past_key_values.0.key"]
        assert [spec.axes for spec in inputs if spec.role == "cache"] == [["batch_size", heads, axis, C // H]] * 4


@pytest.mark.all(but=("Convolved",))
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Convolved, r"Conv reads along its tokens \(test_plain_decoders.py line \d+: `x = x \+ self.conv\("),
        (partial(Opt, Cubed), r"a product of tokens with tokens, .* \(test_plain_decoders.py line \d+: `scores = q @"),
    ],
)
def test_what_is_in_the_way_is_named_with_its_line(make, said):
    source = source_of(make())
    assert source.task == "features"
    assert re.search(f"converted for features, without a KV cache: .*{said}", source.remarks[-1])
    with pytest.raises(PosexportError, match=f"cannot be converted for text-generation: .*{said}"):
        source_of(make(), "text-generation")


@pytest.mark.all
def test_an_encoder_is_no_decoder_and_nothing_is_said_of_it():
    source = source_of(Encoder())
    assert source.task == "features"
    assert not any("KV cache" in remark for remark in source.remarks)
    with pytest.raises(PosexportError, match="its attention sees later tokens"):
        source_of(Encoder(), "text-generation")


class AsManyPositions(nn.Module):
    """An encoder with as many positions as channels, and fewer tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(V - 3, C), nn.Embedding(C, C)
        self.attention = SelfAttention()

    def forward(self, input_ids: Tensor) -> Tensor:
        x: Tensor = self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        return self.attention(x)


def test_hidden_states_are_no_logits_for_want_of_other_sizes():
    source = module_source(AsManyPositions().eval(), {"input_ids": IDS % (V - 3)})
    assert with_cache(source, None) is source


def converted(module: nn.Module, tmp_path: Path, cache: CacheName) -> None:
    options = ConvertOptions(cache=cache, lengths=(1, 7), threads=1, example_inputs=example(module))
    assert convert(module, tmp_path / "out", options).good
    prompts = [[3, 1, 4, 1, 5], [2, 7]]
    answer = load(tmp_path / "out").generate(prompts, max_new_tokens=9)
    assert [each.tokens for each in answer.completions] == [greedy(module, prompt, 9) for prompt in prompts]


@pytest.mark.all
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_convert_with_proof_and_generate(name, cache, tmp_path):
    converted(DECODERS[name](), tmp_path, cache)
