"""CrossEncoders by their modules.json: LogitScore behind a chat template, and pooled scores (tests/answers/vectors)."""

import functools
import json
import shutil

import msgspec
import numpy as np
import pytest

import posexport
from ci.answers import vector_calls
from ci.answers.vectors import FLAT, GOLDEN, STRUCTURED, TESTS, stored_model, texts_of
from posexport import PosexportError
from posexport.base.spec import PairRules
from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.checkpoints.scoring import pair_rules
from posexport.run.session import Session
from posexport.sentence_transformers.backend import Backend
from tests.run.test_vector_calls import answers
from tests.tolerances import agree

#: all are asked in the long tests
SHORT = ("pooled-scores",)
NAMES = (*SHORT, "logit-score", "logit-score-flat", "logit-score-of-texts")
QWEN3 = TESTS / "rerankers" / "qwen3-reranker" / "model"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    at = tmp_path_factory.mktemp("rankers")

    @functools.cache
    def load(name):
        posexport.convert(str(stored_model(name, at)), at / f"{name}.bundle", target="cpu", verify=False)
        return posexport.load(at / f"{name}.bundle")

    yield load
    load.cache_clear()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.all]) for name in NAMES]
)
def test_scores_are_the_librarys(opened, name):
    stored = answers(name)
    for call, asked in GOLDEN[name].calls.items():
        right = [stored[key] for key in (f"{call}.{number}" for number in range(len(stored))) if key in stored]
        assert not vector_calls.difference(vector_calls.as_arrays(asked(opened(name), texts_of(name))), right), call


def with_rules(session, **rules):
    """The same bundle with other rules for pairs."""
    changed = msgspec.structs.replace(session.manifest.pair_rules, **rules)
    return Session(session._directory, msgspec.structs.replace(session.manifest, pair_rules=changed), session._chain)


def test_what_the_template_ends_with_is_kept_where_a_pair_is_cut(opened):
    session = opened("logit-score")
    pairs = vector_calls.pairs_of(texts_of("logit-score"))
    cut = with_rules(session, suffix_kept=False).predict(pairs)
    assert np.abs(cut - session.predict(pairs)).max() > 1e-3
    assert with_rules(session, suffix_kept=False).predict(("a", "b")) == session.predict(("a", "b"))


def test_the_module_of_sentence_transformers_joins_pairs_so_too(opened):
    session = opened("logit-score")
    backend = Backend(session._directory, {})
    pairs = vector_calls.pairs_of(texts_of("logit-score"))[:3]
    for prompt in ("", "Say: "):
        scores = backend.forward(backend.preprocess(pairs, prompt))["scores"][:, 0]
        wanted = session.predict(pairs, prompt=prompt, activation_fn="Identity")
        agree(scores, wanted, "another library", np.float32)
    backend.max_length = 40
    assert backend.preprocess(pairs, None)["input_ids"].shape == (3, 40)


def test_a_template_without_the_roles_is_refused(opened, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(opened("logit-score")._directory, folder)
    session = posexport.load(folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].role }}")
    session = Session(folder, session.manifest, session._chain)
    with pytest.raises(PosexportError, match="leaves out the query and the document of a pair"):
        session.predict(("a", "b"))


def edited(tmp_path, name="logit-score", **files):
    """A golden checkpoint with further keys of JSON files, or whole texts; None removes a file."""
    folder = stored_model(name, tmp_path)
    for file, values in files.items():
        path = folder / file.replace("__", "/")
        if values is None:
            path.unlink()
        elif isinstance(values, dict):
            path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))
        else:
            path.write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


TEXTS = "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("logit-score", {TEXTS: {"transformer_task": "fill-mask"}}, "LogitScore reads logits of next tokens, and"),
        ("logit-score", {"1_LogitScore__config.json": {"true_token_id": 5000}}, "names the token 5000, and the voc"),
        ("logit-score", {"1_LogitScore__config.json": {"module_input_name": "x"}}, "only causal_logits is read"),
        ("logit-score", {"chat_template.jinja": None}, r"texts are messages .*there is no chat template"),
        ("logit-score", {TEXTS: {"modality_config": {"message": {"format": "odd"}}}}, "messages must be flat or"),
        (
            "logit-score",
            {TEXTS: {"processing_kwargs": {"text": {"stride": 3}}}},
            r"says processing_kwargs.text.stride = 3, which is not read here",
        ),
        ("pooled-scores", {TEXTS: {"modality_config": {"text": {}, "message": {}}}}, "are messages of a chat template"),
        ("pooled-scores", {"3_LayerNorm__config.json": {"dimension": 7}}, "dimension = 7; what comes before has 20"),
        ("pooled-scores", {"4_Dense__config.json": {"module_output_name": "other"}}, "only sentence_embedding to scor"),
        ("pooled-scores", {"1_Pooling__config.json": {"include_prompt": False}}, "not computed for pairs of texts"),
        ("pooled-scores", {"modules.json": GOLDEN["pooled-scores"].changes["modules.json"][:2]}, "of a CrossEncoder"),
    ],
)
def test_what_cannot_be_read(tmp_path, name, files, said):
    with pytest.raises(PosexportError, match=said):
        checkpoint_source(edited(tmp_path, name, **files), task=None, allow_pickle=False)


def test_keys_that_are_left_out_are_named(tmp_path):
    folder = edited(
        tmp_path,
        "pooled-scores",
        **{
            TEXTS: {"config_args": {"x": 1}, "model_args": {"torch_dtype": "float16"}, "processor_kwargs": {}},
            "1_Pooling__config.json": {"pooling_mode_max_tokens": False, "layer": 3},
            "config_sentence_transformers.json": {"score_scale": 2},
        },
    )
    remarks = checkpoint_source(folder, task=None, allow_pickle=False).remarks
    left_out = [remark.rpartition("/")[2] for remark in remarks if "not followed here" in remark]
    assert left_out == [
        "config_sentence_transformers.json sets score_scale = 2, which is not followed here",
        f"{TEXTS}, model_args, sets torch_dtype = 'float16', which is not followed here",
        f"{TEXTS} sets config_args = {{'x': 1}}, which is not followed here",
        "config.json sets layer = 3, which is not followed here",
    ]
    plain = checkpoint_source(stored_model("logit-score", tmp_path), task=None, allow_pickle=False).remarks
    assert not [remark for remark in plain if "not followed" in remark]


def test_a_template_with_both_roles_counts_without_modules(tmp_path):
    shutil.copytree(QWEN3, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(STRUCTURED)
    rules = checkpoint_source(tmp_path / "model", task="text-ranking", allow_pickle=False).pair_rules
    assert rules is not None
    assert (rules.messages, rules.template) == ("structured", None)


def test_a_classifier_alone_reads_pairs_by_its_tokenizer_or_its_template(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    files = Directory(tmp_path)
    config = Config(files, "config.json")
    assert pair_rules(files, config, "", "sequence-classification") == PairRules()
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['role'] == 'user' }}")
    assert pair_rules(files, config, "", "sequence-classification") == PairRules()
    (tmp_path / "chat_template.jinja").write_text(FLAT)
    assert pair_rules(files, config, "", "sequence-classification") == PairRules(messages="flat")


def test_options_of_a_classifiers_tokenizer_are_followed(tmp_path):
    folder = stored_model("reranker", tmp_path)
    path = folder / TEXTS
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processing_kwargs": {"text": {"max_length": 31}}}))
    rules = checkpoint_source(folder, task=None, allow_pickle=False).pair_rules
    assert rules is not None
    assert rules.max_length == 31


def test_a_decoder_of_which_nothing_says_how_it_reads_pairs_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    files = Directory(tmp_path)
    with pytest.raises(PosexportError, match="nothing says how this model reads a query and a document"):
        pair_rules(files, Config(files, "config.json"), "", "text-ranking")
