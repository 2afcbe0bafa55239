"""A decoder of your own: train it, convert it with a static KV cache that it knows nothing of, and generate.

Usage: python examples/own_decoder.py
"""

import torch
from torch import Tensor, nn

import posexport
from posexport.nn import Attention


class Decoder(nn.Module):
    def __init__(self, vocab: int = 12, hidden: int = 48) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, hidden), nn.Linear(hidden, vocab)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))
        self.layers = nn.ModuleList(Attention(hidden, 6, "t5", causal=True, kv_heads=2) for _ in range(3))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        for norm, attention in zip(self.norms, self.layers, strict=True):
            x = x + attention(norm(x), attention_mask)
        return self.head(x)


def main() -> None:
    model, ids = Decoder(), (torch.arange(24) + torch.arange(12)[:, None]) % 12  # every row counts, modulo 12
    inputs, optimizer = (ids, torch.ones_like(ids)), torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:]).backward()
        optimizer.step()
    conversion = posexport.convert(model, "counter", example_inputs=inputs, cache="static", lengths=[1, 17], force=True)
    generation = posexport.load("counter").generate([[3, 4], [9, 10, 11]], max_new_tokens=6)
    print(conversion.to_text(), *(row.tokens for row in generation.completions), sep="\n")


if __name__ == "__main__":
    main()
