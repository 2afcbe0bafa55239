"""``--input embeddings``: the second graph is the model from its embeddings on, and generates from any."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

import posexport
from posexport.base.spec import EMBEDS
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.export.layout import arranged
from posexport.errors import PosexportError
from posexport.run.session import Session
from posexport.sources.embeddings_input import with_embeddings
from posexport.sources.source import Source
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden"
IDS = [[5, 9, 2, 17, 7, 11], [3, 4, 8, 12, 2, 1]]


def golden(name: str) -> Source:
    return checkpoint_source(GOLDEN / name, task=None, allow_pickle=False)


def table(name: str, tensor: str) -> torch.Tensor:
    weights = load_file(GOLDEN / name / "model.safetensors")
    return next(x for key, x in weights.items() if key.endswith(tensor)).float()


@pytest.mark.parametrize(
    ("name", "tensor", "factor"),
    [
        ("llama-forcausallm", "model.embed_tokens.weight", 1),
        ("gpt2-lmheadmodel", "transformer.wte.weight", 1),
        ("opt-forcausallm", "model.decoder.embed_tokens.weight", 1),
        # transformers' table has Gemma's factor, its Granite multiplies after it
        ("gemma2-forcausallm", "model.embed_tokens.weight", None),
        ("granite-forcausallm", "model.embed_tokens.weight", 1),
        ("bert-absolute", "word_embeddings.weight", 1),
    ],
)
def test_the_second_graph_reads_what_transformers_calls_inputs_embeds(
    name: str, tensor: str, factor: float | None
) -> None:
    whole = golden(name)
    embed, rest = (part.module for part in with_embeddings(whole).parts)
    weight = table(name, tensor)
    ids = torch.tensor(IDS)
    mask = {"attention_mask": torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])}
    with torch.no_grad():
        (x_BTC,) = embed(ids)
        agree(x_BTC, weight[ids] * (weight.shape[1] ** 0.5 if factor is None else factor), "model", np.float32)
        expected, got = whole.module(input_ids=ids, **mask), rest(x_BTC, **mask)
    for one, other in zip(got, expected, strict=True):
        agree(one, other, "model", np.float32)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("esm-formaskedlm", "the model reads ids for more than their embeddings"),
        ("t5-forconditionalgeneration", "is for models of one graph, .* is .*decoder"),
        ("vit-model", "is for models of texts, .* takes pixel_values"),
    ],
)
def test_models_whose_embeddings_do_not_say_all_are_refused(name: str, said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        with_embeddings(golden(name))


def test_layouts_of_clients_that_feed_ids_are_refused() -> None:
    with pytest.raises(PosexportError, match="--input embeddings is for --layout bundle"):
        arranged(with_embeddings(golden("llama-forcausallm")), "genai")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    bundle = tmp_path_factory.mktemp("embeddings") / "b"
    settings = {"layers": 1, "hidden": 40, "heads": 5, "vocab": 61, "feedforward": 24}
    posexport.convert("decoder-rope", bundle, settings=settings, input="embeddings", verify=False)
    return posexport.load(bundle)


def tokens(session: Session, **prompts: Any) -> list[list[int]]:
    return [one.tokens for one in session.generate(max_new_tokens=6, **prompts).completions]


def soft(rows: int, length: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((rows, length, 40)).astype(np.float32)


def test_embeddings_of_ids_generate_as_the_ids_do(session: Session) -> None:
    x_BTC = session.embed_tokens(IDS)
    for options in ({}, {"prefill_chunk_size": 2}, {"num_beams": 3}):
        assert tokens(session, inputs_embeds=x_BTC, **options) == tokens(session, prompts=IDS, **options)


def test_a_row_of_a_batch_of_soft_prompts_is_as_alone(session: Session) -> None:
    x_BTC = soft(2, 7)
    alone = [tokens(session, inputs_embeds=x_BTC[:1])[0], tokens(session, inputs_embeds=x_BTC[1:, 3:])[0]]
    mask = [[1] * 7, [0] * 3 + [1] * 4]
    assert tokens(session, inputs_embeds=[x_BTC[0], x_BTC[1, 3:]]) == alone
    assert tokens(session, prompts={EMBEDS: x_BTC, "attention_mask": mask}) == alone
    # greedy steps by calls of the graph
    logits = session.run({EMBEDS: x_BTC[:1]}, outputs=["logits"])["logits"]
    assert alone[0][0] == int(logits[0, -1].argmax())


def test_a_soft_prompt_streams_the_tokens_that_it_generates(session: Session) -> None:
    (x_TC,) = soft(1, 5)
    assert list(session.stream(inputs_embeds=x_TC, max_new_tokens=6)) == tokens(session, inputs_embeds=[x_TC])[0]
    with pytest.raises(PosexportError, match="either prompts or inputs_embeds"):
        session.stream(IDS[0], inputs_embeds=x_TC)


def test_a_call_takes_ids_or_embeddings(session: Session) -> None:
    with pytest.raises(PosexportError, match="either input_ids or inputs_embeds"):
        session.run({"input_ids": IDS, EMBEDS: soft(2, 7)})


def test_penalties_see_no_ids_of_embeddings(session: Session) -> None:
    x_BTC, first = soft(1, 5), 0
    first = tokens(session, inputs_embeds=x_BTC)[0][0]
    generation = session.generate(inputs_embeds=x_BTC, max_new_tokens=1, repetition_penalty=100.0)
    assert generation.completions[0].tokens == [first]
    assert generation.prompt_tokens == 5


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ({}, "either prompts or inputs_embeds"),
        ({"prompts": IDS, "inputs_embeds": soft(1, 2)}, "either prompts or inputs_embeds"),
        ({"inputs_embeds": soft(1, 2)[..., :3]}, r"inputs_embeds needs the axes \[batch_size, sequence_length, 40\]"),
        ({"inputs_embeds": [soft(1, 2)[0, :, :3]]}, r"inputs_embeds of prompt 0 must be \[tokens, 40\]"),
        ({"inputs_embeds": soft(1, 2) * np.inf}, "it takes finite numbers"),
        ({"inputs_embeds": []}, "give at least 1|needs the axes"),
        ({"inputs_embeds": 3}, "needs the axes|must be"),
        ({"prompts": {EMBEDS: soft(1, 2), "attention_mask": [[0, 0]]}}, "prompt 0 is empty"),
        ({"prompts": {EMBEDS: soft(1, 2), "position_ids": [[0, 1]]}}, "unknown input position_ids"),
        ({"inputs_embeds": soft(1, 2), "images": [[]]}, "leave images and decoder_prompts out"),
    ],
)
def test_wrong_embeddings_are_refused(session: Session, prompts: dict[str, Any], said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        tokens(session, **prompts)
