"""Decoders in transformers' form whose attention is code of their own get their KV cache in the graph."""

import pytest
import torch
from torch import Tensor, nn

from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.errors import PosexportError
from posexport.models.forward_decoder import ForwardDecoder
from posexport.modules.live_module import source_of_module
from posexport.sources.source import Source
from posexport.through.decoder_source import decoder_source
from posexport.through.module import TransformersModule

VOCAB, WIDTH, HEADS, LONGEST = 23, 15, 5, 40


class Own(nn.Module):
    """A decoder of one layer; a subclass says how it numbers its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.table = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCAB)

    def logits(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(input_ids) + self.table(position_ids)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        dropped = later | (attention_mask == 0)[:, None, None]
        scores = (q @ k.mT * 0.6).masked_fill(dropped, torch.finfo(q.dtype).min)
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return {"logits": self.out(self.mixed(x))}

    def mixed(self, x: Tensor) -> Tensor:
        return x


class Numbered(Own):
    def forward(
        self, input_ids: Tensor, *, attention_mask: Tensor, position_ids: Tensor, return_dict: bool
    ) -> dict[str, Tensor]:
        return self.logits(input_ids, attention_mask, position_ids)


class Counting(Own):
    """It takes no positions."""

    def forward(self, input_ids: Tensor, *, attention_mask: Tensor, return_dict: bool) -> dict[str, Tensor]:
        return self.logits(input_ids, attention_mask, (attention_mask.cumsum(1) - 1).clamp(min=0))


class Mixed(Numbered):
    def mixed(self, x: Tensor) -> Tensor:
        return x + x.cumsum(1)


def source_of(model: Own) -> Source:
    axes = [BATCH, SEQUENCE]
    ids = InputSpec(name="input_ids", dtype="int64", axes=[*axes], role="tokens", size=VOCAB)
    mask = InputSpec(name="attention_mask", dtype="int64", axes=[*axes], role="mask")
    numbered = isinstance(model, Numbered)
    text = TransformersModule(model.eval(), ("logits",), [ids, mask], with_positions=numbered).eval()
    return decoder_source(source_of_module("toy", text, label="toy", fingerprint=b""), 1)


@pytest.mark.parametrize(
    ("make", "positions"), [pytest.param(Numbered, True, marks=pytest.mark.all), (Counting, False)]
)
def test_a_decoder_with_attention_of_its_own_has_a_cache_of_its_heads(make: type[Own], positions: bool) -> None:
    torch.manual_seed(0)
    source = source_of(make())
    assert isinstance(source.module, ForwardDecoder)
    assert source.limits.kv_cache
    assert source.limits.max_length == LONGEST
    past = {spec.name: spec.axes for spec in source.inputs if spec.role == "cache"}
    assert list(past) == ["past_key_values.0.key", "past_key_values.0.value"]
    assert [[axes[1], axes[3]] for axes in past.values()] == [[HEADS, WIDTH // HEADS]] * 2
    assert ("position_ids" in {spec.name for spec in source.inputs}) == positions
    assert source.encoding is None


def test_what_neither_way_gives_a_cache_is_refused_with_the_line() -> None:
    with pytest.raises(
        PosexportError,
        match=r"its attention is code of its own, .*: CumSum reads along its tokens \(test_inserted_cache\.py line \d+",
    ):
        source_of(Mixed())
