"""A tagger of your own with T5's relative position bias: train it, convert it, assert its parity.

Usage: python examples/own_module.py
"""

import torch
from torch import Tensor, nn

import posexport
from posexport.nn import Attention
from posexport.testing import assert_parity


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.attention = Attention(32, 4, encoding="t5")
        self.head = nn.Linear(32, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        return self.head(x + self.attention(x, attention_mask))


def main() -> None:
    model, ids = Tagger(), torch.randint(50, (64, 24))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(**inputs)[:, 1:].mT, (ids.diff() > 0).long()).backward()
        optimizer.step()
    posexport.convert(model.eval(), "tagger", example_inputs=inputs, lengths=[1, 17, 65])
    assert_parity("tagger", against=model, example_inputs=inputs, lengths=[1, 17, 200])


if __name__ == "__main__":
    main()
