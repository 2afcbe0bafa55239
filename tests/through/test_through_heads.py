"""Poolings and projections on the states of a model of transformers, whose place a small module takes here.

The conversions themselves, with transformers and compared with sentence-transformers, are in ci/answers/through_heads.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from posexport.base.spec import TextRules, TokenRules
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.pooling import Pooling, Step
from posexport.checkpoints.scoring import Answers
from posexport.checkpoints.weights import Weights, open_weights
from posexport.errors import PosexportError
from posexport.nn.pooling import DenseConfig, SpladeConfig
from posexport.through import heads
from tests.tolerances import agree

VOCAB, WIDTH, OUTER = 13, 6, 4
IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


class Encoder(nn.Module):
    """Vectors of words, called as transformers' models are; types tell it from a decoder."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        settings = SimpleNamespace(vocab_size=VOCAB, hidden_size=WIDTH, pad_token_id=0, type_vocab_size=1, **config)
        self.config = SimpleNamespace(get_text_config=lambda: settings, is_encoder_decoder=False)
        self.embed = nn.Embedding(VOCAB, WIDTH)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Any = None, return_dict: bool = True
    ) -> dict[str, Tensor]:
        del attention_mask, token_type_ids, return_dict
        states_BTC = self.embed(input_ids)
        return {"last_hidden_state": states_BTC, "logits": states_BTC}


class Decoder(Encoder):
    """Adds the number of each token."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, return_dict: bool = True
    ) -> dict[str, Tensor]:
        del attention_mask, return_dict
        return {"last_hidden_state": self.embed(input_ids) + position_ids[..., None]}


class Generator(Decoder):
    """A decoder with a projection to the vocabulary, whose logits are scaled; ``sharpened``: by all of them."""

    def __init__(self, *, sharpened: bool = False) -> None:
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, VOCAB)
        self.sharpened = sharpened

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, projection: nn.Linear) -> None:
        self.lm_head = projection

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Any = None, return_dict: bool = True
    ) -> dict[str, Tensor]:
        del attention_mask, position_ids, return_dict
        logits_BTV = 2 * self.lm_head(self.embed(input_ids))
        return {"logits": logits_BTV.softmax(-1) if self.sharpened else logits_BTV}


class Picture(Encoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Any:  # type: ignore[override]
        raise NotImplementedError


def pooling(*modes: Any, rules: TextRules | None = None, **options: Any) -> Pooling:
    fields = {"steps": [], "width": WIDTH, "width_key": "embedding_dimension", "label": "1_Pooling/config.json"}
    return Pooling(modes=modes, rules=rules or TextRules(), **{**fields, **options})


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    """Those of the model, and of a projection in a folder of its own."""
    folder = tmp_path / "2_Dense"
    folder.mkdir()
    torch.manual_seed(2)
    save_file({"embed.weight": torch.randn(VOCAB, WIDTH)}, tmp_path / "model.safetensors")
    save_file(
        {"linear.weight": torch.randn(OUTER, WIDTH), "linear.bias": torch.ones(OUTER)}, folder / "model.safetensors"
    )
    files = Directory(tmp_path)
    whole = open_weights(files, "", allow_pickle=False)
    return whole.beside("2_Dense/", open_weights(files, "2_Dense/", allow_pickle=False))


def test_the_mean_of_tokens_is_projected_by_the_folder_s_weights(weights: Weights) -> None:
    dense = Step(dense=DenseConfig(inner=WIDTH, outer=OUTER, activation="tanh"), folder="2_Dense/")
    module = heads.pooled("x", Encoder(), pooling("mean", steps=[dense, Step(dense=None)]), weights)
    assert [spec.name for spec in module.inputs] == ["input_ids", "attention_mask"]
    answers = module(input_ids=IDS, attention_mask=MASK)
    states = module.model.embed(IDS)
    means = torch.stack([states[0].mean(0), states[1, :3].mean(0)])
    weight, bias = weights.read("2_Dense/linear.weight"), weights.read("2_Dense/linear.bias")
    wanted = nn.functional.normalize((means @ weight.T + bias).tanh(), dim=-1)
    agree(answers["sentence_embedding"], wanted, "model in float32", torch.float32)
    agree(answers["last_hidden_state"], states, "model in float32", torch.float32)


def test_the_prompt_s_tokens_are_left_out(weights: Weights) -> None:
    module = heads.pooled("x", Encoder(), pooling("mean", rules=TextRules(prompt_pooled=False)), weights)
    assert [(spec.name, spec.default) for spec in module.inputs][-1] == ("prompt_mask", 0)
    marked = torch.tensor([[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    vectors = module(input_ids=IDS, attention_mask=MASK, prompt_mask=marked)["sentence_embedding"]
    states = module.model.embed(IDS)
    agree(vectors, torch.stack([states[0, 2:].mean(0), states[1, 1:3].mean(0)]), "model in float32", torch.float32)


def test_tokens_of_a_decoder_are_numbered_by_the_mask(weights: Weights) -> None:
    module = heads.pooled("x", Decoder(), pooling("lasttoken"), weights)
    left = heads.pooled("x", Decoder(), pooling("lasttoken"), weights)
    right = module(input_ids=IDS, attention_mask=MASK)["sentence_embedding"]
    rolled = (torch.stack([each[0], each[1].roll(2)]) for each in (IDS, MASK))
    ids, mask = rolled
    agree(left(input_ids=ids, attention_mask=mask)["sentence_embedding"], right, "model in float32", torch.float32)
    agree(right[1], module.model.embed(IDS[1, 2]) + 2, "model in float32", torch.float32)


def test_words_are_weighed(weights: Weights) -> None:
    module = heads.pooled("x", Encoder(), pooling(splade=SpladeConfig()), weights)
    (vectors,) = module(input_ids=IDS, attention_mask=MASK).values()
    logits = module.model.embed(IDS)
    agree(vectors[1], logits[1, :3].relu().log1p().amax(0), "model in float32", torch.float32)


def test_tokens_have_vectors(weights: Weights) -> None:
    dense = Step(dense=DenseConfig(inner=WIDTH, outer=OUTER, bias=False), folder="2_Dense/")
    rules = TextRules(tokens=TokenRules())
    module = heads.pooled("x", Encoder(), pooling(rules=rules, steps=[dense]), weights)
    vectors = module(input_ids=IDS, attention_mask=MASK)["token_embeddings"]
    wanted = nn.functional.normalize(module.model.embed(IDS) @ weights.read("2_Dense/linear.weight").T, dim=-1)
    agree(vectors, wanted, "model in float32", torch.float32)


@pytest.mark.parametrize("false", [7, None])
def test_two_rows_of_the_vocabulary_make_a_score(false: int | None) -> None:
    whole = Generator()
    logits = whole(IDS, MASK)["logits"]
    module = heads.ranked("x", Generator(), Answers(true=3, false=false, label="y"))
    last = torch.stack([logits[0, 4], logits[1, 2]])
    wanted = last[:, 3] - (0 if false is None else last[:, 7])
    # torch.manual_seed in the constructor: both have the same weights
    agree(module(input_ids=IDS, attention_mask=MASK)["logits"], wanted[:, None], "model in float32", torch.float32)
    assert module.model.lm_head.out_features == (1 if false is None else 2)


def test_logits_that_depend_on_one_another_make_none() -> None:
    with pytest.raises(PosexportError, match="Generator makes a logit of more than its row of the projection"):
        heads.ranked("x", Generator(sharpened=True), Answers(true=3, false=7, label="y"))


def test_refusals(weights: Weights) -> None:
    with pytest.raises(PosexportError, match=r"embedding_dimension = 7; config.json says hidden_size = 6"):
        heads.pooled("x", Encoder(), pooling("mean", width=7), weights)
    with pytest.raises(PosexportError, match="Picture reads more than texts"):
        heads.pooled("x", Picture(), pooling("mean"), weights)
    both = Encoder()
    both.config.is_encoder_decoder = True
    with pytest.raises(PosexportError, match="Encoder is an encoder-decoder"):
        heads.pooled("x", both, pooling("mean"), weights)
    filled = TextRules(tokens=TokenRules(filled_to=32))
    with pytest.raises(PosexportError, match=r"queries are filled up with tokens .* a decoder, Decoder"):
        heads.pooled("x", Decoder(), pooling(rules=filled), weights)
    for folder, said in (("3_Dense/", "has no tensor 3_Dense/linear.weight"), ("2_Dense/", r"has the shape \[4, 6\]")):
        dense = Step(dense=DenseConfig(inner=WIDTH, outer=5), folder=folder)
        with pytest.raises(PosexportError, match=said):
            heads.pooled("x", Encoder(), pooling("mean", steps=[dense]), weights)
