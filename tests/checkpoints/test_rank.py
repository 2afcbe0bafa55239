"""`Session.predict` and `rank` give what sentence-transformers and transformers gave (tests/rerankers)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import posexport
from posexport import PosexportError
from posexport.base.spec import PairRules
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.run.call_forms import as_pairs
from posexport.run.scores import activated, in_order
from posexport.run.session import Session
from tests.tiny_bundle import write_bundle
from tests.tolerances import agree

STORED = Path(__file__).parents[1] / "rerankers"
ASKED = {path.parent.name: json.loads(path.read_text()) for path in sorted(STORED.glob("*/calls.json"))}
TEXTS = json.loads((STORED / "texts.json").read_text())
PAIRS = list(zip(TEXTS, [*TEXTS[1:], TEXTS[0]], strict=True))
LIMIT = 1e-5


@pytest.mark.all
@pytest.mark.parametrize("name", ASKED)
def test_predict_is_that_of_the_library(tmp_path, name):
    asked, answers = ASKED[name], np.load(STORED / name / "answers.npz")
    posexport.convert(str(STORED / name / "model"), tmp_path / "b", task=asked["task"], target="cpu", verify=False)
    session = posexport.load(tmp_path / "b")
    for number, call in enumerate(asked["calls"]):
        wanted = answers[str(number)]
        assert np.abs(session.predict(PAIRS, **call) - wanted).max() <= LIMIT
        assert np.abs(session.predict(PAIRS, batch_size=2, **call) - wanted).max() <= LIMIT
    scores = session.predict([(TEXTS[0], text) for text in TEXTS])
    ranked = session.rank(TEXTS[0], TEXTS, top_k=3)
    assert [each["corpus_id"] for each in ranked] == np.argsort(-scores)[:3].tolist()
    agree(np.array([each["score"] for each in ranked]), np.sort(scores)[::-1][:3], "operator", np.float32)


def test_the_score_of_a_decoder_is_read_before_the_padding():
    source = checkpoint_source(STORED / "llama-classifier" / "model", task=None, allow_pickle=False)
    assert source.task == "sequence-classification"
    assert not source.limits.kv_cache
    assert [spec.name for spec in source.inputs] == ["input_ids", "attention_mask"]
    ids = torch.arange(5, 10)[None]
    padding = torch.zeros(1, 3, dtype=torch.int64)
    with torch.inference_mode():
        alone = source.module(input_ids=ids)[0]
        for order in ((ids, padding), (padding, ids)):
            mask = torch.cat([part * 0 + (part is ids) for part in order], 1)
            agree(
                source.module(input_ids=torch.cat(order, 1), attention_mask=mask)[0], alone, "operator", torch.float32
            )
        # transformers goes by the padding's id, whatever the mask says
        unmasked = source.module(input_ids=torch.cat([ids, padding], 1))[0]
        agree(unmasked, alone, "operator", torch.float32)
        assert not torch.equal(source.module(input_ids=ids.flip(1))[0], alone)


def test_the_score_of_yes_is_its_share_of_both():
    model = STORED / "qwen3-reranker" / "model"
    source = checkpoint_source(model, task="text-ranking", allow_pickle=False)
    generating = checkpoint_source(model, task="text-generation", allow_pickle=False)
    vocab = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    number = {token["content"]: token["id"] for token in vocab}
    ids = torch.arange(20, 31)[None]
    with torch.inference_mode():
        logits = generating.module(input_ids=ids)[0][0, -1, [number["no"], number["yes"]]]
        score = source.module(input_ids=ids)[0].sigmoid()[0, 0]
    agree(score, logits.softmax(-1)[1], "operator", torch.float32)
    rules = source.pair_rules
    assert rules is not None
    assert rules.template is not None
    assert rules.max_length == 400


def test_a_tokenizer_without_the_answers_is_refused():
    with pytest.raises(PosexportError, match=r"has no token 'yes', whose logit is the score"):
        checkpoint_source(
            Path(__file__).parents[1] / "embedders" / "qwen3-lasttoken" / "model",
            task="text-ranking",
            allow_pickle=False,
        )


def test_a_cross_encoder_of_version_6_has_no_pooling():
    source = checkpoint_source(STORED / "cross-encoder" / "model", task=None, allow_pickle=False)
    assert source.task == "sequence-classification"
    assert source.text_rules is None
    assert source.pair_rules == PairRules(max_length=128, activation="Sigmoid")


LOGITS = np.array([[-800.0], [0.0], [2.0]], np.float32)


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        (PairRules(), [0, 0.5, 1 / (1 + np.exp(-2))]),
        (PairRules(activation="Sigmoid"), [0, 0.5, 1 / (1 + np.exp(-2))]),
        (PairRules(activation="Identity"), [-800, 0, 2]),
        (PairRules(activation="Tanh"), [-1, 0, np.tanh(2)]),
    ],
)
def test_the_activation(rules, wanted):
    agree(activated(LOGITS, rules), np.array(wanted), "operator", np.float32)


def test_several_labels_are_left_as_they_are():
    logits = np.array([[1.0, -2.0, 3.0]], np.float32)
    assert np.array_equal(activated(logits, PairRules()), logits)
    with pytest.raises(PosexportError, match=r"gives 3 scores a pair, .*; use predict"):
        in_order(logits, None)


def test_documents_are_in_the_order_of_their_scores():
    scores = np.array([0.25, 0.75, 0.5, 0.75], np.float32)
    assert [each["corpus_id"] for each in in_order(scores, None)] == [1, 3, 2, 0]
    assert in_order(scores, 1) == [{"corpus_id": 1, "score": 0.75}]
    with pytest.raises(PosexportError, match="top_k must be at least 1, got 0"):
        in_order(scores, 0)


def test_what_cannot_be_scored(tmp_path):
    with pytest.raises(PosexportError, match="scores that are 'Mish' of logits are not computed here"):
        activated(LOGITS, PairRules(activation="Mish"))
    for pairs, said in (
        ("ab", "got 'ab' where pairs of texts are needed"),
        (["ab"], "pair 0 must be two texts, got ['ab']"),
        ([("a", 1)], "pair 0"),
    ):
        with pytest.raises(PosexportError, match=re.escape(said)):
            as_pairs(pairs)
    session: Session = posexport.load(write_bundle(tmp_path / "b", texts=True))
    with pytest.raises(PosexportError, match="scores no pairs of texts; convert a cross-encoder"):
        session.predict([("a", "b")])
