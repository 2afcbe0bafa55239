"""Trains a small llama on Python's documentation strings, to under half the perplexity of its tokens' frequencies.

What a precision costs a decoder cannot be seen on random weights: their logits are noise. Writes a checkpoint as
transformers has them (``config.json``, ``model.safetensors``, ``tokenizer.json``), and ``training.json`` with both
perplexities on sentences that were not trained on: those of ``ci/lab/costs``.

Shape letters: B rows, T tokens, C model size, H heads, D head size.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from costs import SENTENCES, every_sentence, sentences
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from posexport.run.tokenizer.byte_pair import train as train_tokenizer

ROOT = Path(__file__).parents[3]
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "float32",
}
ROWS, LENGTH, RATE = 8, 96, 3e-3
#: the perplexity relative to that of frequencies below which a model has learned something
ENOUGH = 0.5


class Attention(nn.Module):
    """Causal self-attention with RoPE (arXiv:2104.09864) on halves of a head, as llama's checkpoints have it."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(size, size, bias=False) for _ in range(4))

    def forward(self, x_BTC: Tensor) -> Tensor:
        q, k, v = (
            part(x_BTC).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        out: Tensor = self.o_proj(y.transpose(1, 2).flatten(-2))
        return out


def rotated(x_BHTD: Tensor) -> Tensor:
    """Every token's pairs (d, d + D/2) turned by its position times theta^(-2d/D)."""
    half = x_BHTD.shape[-1] // 2
    rate = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
    angle = torch.arange(x_BHTD.shape[-2])[:, None] * rate
    first, second = x_BHTD[..., :half], x_BHTD[..., half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        size, eps = CONFIG["hidden_size"], CONFIG["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(size, eps=eps) for _ in range(2))
        self.self_attn = Attention(size, CONFIG["num_attention_heads"])
        self.mlp = FeedForward(size, CONFIG["intermediate_size"])

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC))
        out: Tensor = x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))
        return out


class Llama(nn.Module):
    """Parameters named as transformers names them."""

    def __init__(self) -> None:
        super().__init__()
        size, vocab = CONFIG["hidden_size"], CONFIG["vocab_size"]
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocab, size)
        self.model.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(size, eps=CONFIG["rms_norm_eps"])
        self.lm_head = nn.Linear(size, vocab, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTC = self.model.embed_tokens(ids_BT)
        for layer in self.model.layers:
            x_BTC = layer(x_BTC)
        out: Tensor = self.lm_head(self.model.norm(x_BTC))
        return out


def train(ids: Tensor, steps: int, seed: int) -> Llama:
    """AdamW, the rate falling along a cosine behind a short rise."""
    torch.manual_seed(seed)
    model, drawn = Llama(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    rise = max(1, steps // 20)
    for step in range(steps):
        part = min(1.0, (step + 1) / rise) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = RATE * part
        starts = torch.randint(0, len(ids) - LENGTH - 1, (ROWS,), generator=drawn)
        rows = torch.stack([ids[start : start + LENGTH + 1] for start in starts])
        logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step + 1 == steps:
            print(f"step {step + 1} of {steps}: perplexity {loss.exp():.1f}", flush=True)
    return model.eval()


def perplexities(model: Llama, ids: Tensor, texts: list[list[int]]) -> tuple[float, float]:
    """Of the model, and of the frequencies of the tokens ``ids``, on every token of ``texts`` but the first ones."""
    counts = np.bincount(ids.numpy(), minlength=CONFIG["vocab_size"]) + 1.0
    surprise = -np.log(counts / counts.sum())
    total = of_frequency = 0.0
    tokens = 0
    with torch.inference_mode():
        for row in texts:
            given = torch.tensor([row])
            loss = functional.cross_entropy(model(given[:, :-1])[0], given[0, 1:], reduction="sum")
            total, tokens = total + loss.item(), tokens + len(row) - 1
            of_frequency += surprise[row[1:]].sum()
    return math.exp(total / tokens), math.exp(of_frequency / tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("-o", "--output", type=Path, default=ROOT / ".cache/decoder", metavar="DIR")
    parser.add_argument("--steps", type=int, default=600, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    given = parser.parse_args()
    start = time.perf_counter()
    given.output.mkdir(parents=True, exist_ok=True)
    asked = sentences(SENTENCES)
    corpus = given.output / "corpus.txt"
    corpus.write_text("\n".join(sorted(set(every_sentence()) - set(asked))) + "\n", encoding="utf-8")
    trained = train_tokenizer(corpus, CONFIG["vocab_size"])
    (given.output / "tokenizer.json").write_bytes(trained.data)
    tokenizer = Tokenizer.from_buffer(trained.data)
    lines = corpus.read_text(encoding="utf-8").splitlines()
    order = np.random.default_rng(given.seed).permutation(len(lines))
    encoded = tokenizer.encode_batch([lines[index] for index in order])
    ids = torch.tensor([token for row in encoded for token in row.ids])
    corpus.unlink()
    model = train(ids, given.steps, given.seed)
    rows = [row.ids for row in tokenizer.encode_batch(asked) if len(row.ids) > 1]
    ours, of_frequency = perplexities(model, ids, rows)
    save_file(dict(model.state_dict()), given.output / "model.safetensors", {"format": "pt"})
    (given.output / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    found = {
        "perplexity": ours,
        "unigram_perplexity": of_frequency,
        "tokens": len(ids),
        "steps": given.steps,
        "seconds": round(time.perf_counter() - start),
    }
    (given.output / "training.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return int(ours >= ENOUGH * of_frequency)


if __name__ == "__main__":
    raise SystemExit(main())
