"""Continuing prompts: PyTorch's tokens, in any company, up to every end, as text that is whole."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner

import posexport
from posexport.base.spec import NUM_LOGITS
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.run.bundle.read import read
from posexport.run.bundle.write import seal
from posexport.run.cache import Cache, decoder_interface
from posexport.run.chain import Chain
from posexport.run.generate.command import SequentialStreamer
from posexport.run.on_device import LastToken
from posexport.run.ort_values import run_bound
from posexport.run.session import Session
from posexport.sources import builtin
from tests.command import posexport as run_posexport
from tests.small import in_short
from tests.tolerances import agree

ROOT = Path(__file__).parents[2]
#: rows of the position table
LIMIT = 23
#: tied embeddings would repeat the last token for ever
SIZES = ("layers=2", "hidden=20", "heads=5", "feedforward=37", "vocab=61", "tied=false")
MODELS = {
    "rope": (),
    "alibi": (),
    "absolute": (f"max_positions={LIMIT}",),
    "rope-longrope": ("max_positions=12", "short_factor=1", "long_factor=9"),
}
CORPUS = """low lower newest widest happier low low the cat sat on the mat and the dog ran to the long river
naïve café déjà vu straße
"""
PROMPTS = [[5], [7, 8, 9, 10], [3, 1, 4, 1, 5, 9, 2, 6, 5]]


def posexport_command(*arguments: str | Path) -> Any:
    return CliRunner().invoke(group, [*map(str, arguments)])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "corpus.txt").write_text(CORPUS, encoding="utf-8")
    out = folder / "tokenizer.json"
    done = posexport_command("tokenizer", "train", folder / "corpus.txt", "-o", out, "--vocab-size", "61")
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Callable[..., Path]:
    """``bundle("rope")``: a converted decoder, converted once."""
    result: dict[tuple[str, ...], Path] = {}

    def make(name: str, *options: str) -> Path:
        key = (name, *options)
        if key not in result:
            target = tmp_path_factory.mktemp("bundles") / name
            settings = [word for pair in (*SIZES, *MODELS.get(name, ())) for word in ("--set", pair)]
            words = ["--no-verify", "--threads", "1", "--tokenizer", str(tokenizer)]
            done = posexport_command("convert", f"decoder-{name}", "-o", target, *settings, *words, *options)
            assert done.exit_code == 0, done.output
            result[key] = target
        return result[key]

    return make


@pytest.fixture
def session(bundle: Callable[..., Path]) -> Callable[..., Session]:
    return lambda name, *options: posexport.load(bundle(name, *options), threads=1)


def tokens(result: Any) -> list[list[int]]:
    return [one.tokens for one in result.completions]


def full_passes(name: str, prompt: list[int], count: int) -> list[int]:
    """PyTorch's best tokens, each from a pass over everything before it, in float64."""
    source = builtin.builtin_source(f"decoder-{name}", task=None, settings_given=(*SIZES, *MODELS[name]))
    module, row = source.module.double(), list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            row.append(int(module(input_ids=torch.tensor([row]))[0][0, -1].argmax()))
    return row[len(prompt) :]


# -- tokens ----------------------------------------------------------------------------------------


@pytest.mark.all(but=("[rope",))
@pytest.mark.parametrize("name", in_short(["rope", "alibi", "absolute"], ("rope", "absolute").__contains__))
def test_the_tokens_are_those_of_full_passes_by_pytorch(name: str, session: Callable[..., Session]) -> None:
    result = session(name).generate(PROMPTS, max_new_tokens=14)
    expected = [full_passes(name, prompt, 14) for prompt in PROMPTS]
    assert tokens(result) == expected
    assert len({token for row in expected for token in row}) >= 6, "too monotonous to show an error"
    assert [one.finish for one in result.completions] == ["length"] * 3
    assert [one.prompt_tokens for one in result.completions] == PROMPTS


@pytest.mark.all(but=("[absolute-options1",))
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 3}])
@pytest.mark.parametrize("name", in_short(["rope", "alibi", "absolute"], ("rope", "absolute").__contains__))
def test_a_batch_gives_what_each_prompt_gives_alone(
    name: str, options: dict[str, Any], session: Callable[..., Session]
) -> None:
    opened = session(name)
    batched = opened.generate(PROMPTS, max_new_tokens=14, **options)
    alone = [opened.generate([prompt], max_new_tokens=14, **options) for prompt in PROMPTS]
    assert tokens(batched) == [row for result in alone for row in tokens(result)]
    assert [one.text for one in batched.completions] == [result.completions[0].text for result in alone]


@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
def test_a_prompt_read_in_chunks_changes_nothing(chunk: int, session: Callable[..., Session]) -> None:
    opened = session("rope")
    assert tokens(opened.generate(PROMPTS, max_new_tokens=9, prefill_chunk_size=chunk)) == tokens(
        opened.generate(PROMPTS, max_new_tokens=9)
    )


def test_texts_are_their_ids(session: Callable[..., Session]) -> None:
    opened = session("rope")
    texts = ["the cat sat", "low", "the dog ran to the river"]
    ids = [[int(token) for token in opened.tokenize([text])["input_ids"][0]] for text in texts]
    assert opened.generate(texts, max_new_tokens=8).completions == opened.generate(ids, max_new_tokens=8).completions


def test_the_limit_ends_each_row_where_it_ends_alone(session: Callable[..., Session]) -> None:
    """The padding of the longer prompt takes the shorter one's room, and is given back."""
    opened = session("absolute")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 61, length).tolist() for length in (20, 5, LIMIT, 14)]
    result = opened.generate(prompts, max_new_tokens=17)
    assert [len(one.tokens) for one in result.completions] == [LIMIT + 1 - 20, 17, 1, LIMIT + 1 - 14]
    assert [one.finish for one in result.completions] == ["limit", "length", "limit", "limit"]
    assert tokens(result) == [tokens(opened.generate([prompt], max_new_tokens=17))[0] for prompt in prompts]
    assert result.step_tokens == sum(len(row) - 1 for row in tokens(result)), "rows that are finished make no tokens"
    assert tokens(result)[1] == full_passes("absolute", prompts[1], 17)
    with pytest.raises(
        PosexportError, match=r"prompt 1 has 24 tokens and is longer than 23 positions: .* at most 23 .*; shorten it"
    ):
        opened.generate([[1], [2] * (LIMIT + 1)])


@pytest.mark.all
def test_a_row_that_outgrows_longrope_is_read_again(session: Callable[..., Session]) -> None:
    """Then it is what a full pass is, at every step; the bundle's own cached steps are not."""
    opened = session("rope-longrope")
    prompts = [[5, 6, 7], [11, 3, 9, 4, 2, 6, 8], list(range(20, 40))]
    expected = [full_passes("rope-longrope", prompt, 16) for prompt in prompts]
    assert tokens(opened.generate(prompts, max_new_tokens=16)) == expected
    assert tokens(opened.generate(prompts, max_new_tokens=16, prefill_chunk_size=5)) == expected
    # without reading again they differ: the test above can fail
    feeds: dict[str, Any] = {"input_ids": [prompts[0]]}
    rerun = []
    for _ in range(16):
        out = opened.run(feeds)
        rerun.append(int(out["logits"][0, -1].argmax()))
        past = {name.replace("present", "past_key_values"): y for name, y in out.items() if name != "logits"}
        feeds = {"input_ids": [[rerun[-1]]], **past}
    assert rerun[:10] == expected[0][:10]
    assert rerun != expected[0]


@pytest.mark.all
@pytest.mark.parametrize(
    ("prompt", "options", "refused"),
    [
        ([5] * 3, {"max_new_tokens": 10}, False),
        ([5] * 3, {"max_new_tokens": 11}, True),
        ([5] * 13, {"max_new_tokens": 11}, False),
        ([5] * 13, {"max_new_tokens": 11, "prefill_chunk_size": 12}, True),
        ([5] * 13, {"max_new_tokens": 11, "prefill_chunk_size": 13}, False),
    ],
)
def test_no_recompute_refuses_what_would_need_it(
    prompt: list[int], options: dict[str, Any], refused: bool, session: Callable[..., Session]
) -> None:
    opened = session("rope-longrope")
    if not refused:
        assert tokens(opened.generate([prompt], recompute=False, **options)) == tokens(
            opened.generate([prompt], **options)
        )
        return
    with pytest.raises(PosexportError, match=r"prompt 0 is to be read up to .* beyond 12 all cached keys .* change"):
        opened.generate([prompt], recompute=False, **options)


# -- sampling --------------------------------------------------------------------------------------


def test_sampling_follows_its_seed(session: Callable[..., Session]) -> None:
    opened = session("rope")

    def sampled(seed: int) -> list[list[int]]:
        return tokens(opened.generate([[5, 6], [5, 6]], max_new_tokens=20, temperature=2.0, seed=seed))

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert sampled(1)[0] != sampled(1)[1], "two samples of one prompt"
    greedy = tokens(opened.generate([[5, 6]], max_new_tokens=20))
    assert sampled(1)[0] != greedy[0]
    assert tokens(opened.generate([[5, 6]], max_new_tokens=20, temperature=0, top_p=0.5)) == greedy
    assert tokens(opened.generate([[5, 6]], max_new_tokens=20, top_k=1, seed=9)) == greedy


# -- ends ------------------------------------------------------------------------------------------


def with_files(bundle: Path, target: Path, **files: object) -> Path:
    """A copy with JSON files added, sealed again."""
    shutil.copytree(bundle, target)
    for name, content in files.items():
        (target / f"{name}.json").write_text(json.dumps(content))
    seal(target, read(target))
    return target


def test_stop_tokens_are_those_of_the_configuration(bundle: Callable[..., Path], tmp_path: Path) -> None:
    whole = tokens(posexport.load(bundle("rope"), threads=1).generate(PROMPTS, max_new_tokens=14))
    places = [next(i for i, token in enumerate(row) if i > 2 and token not in row[:i]) for row in whole[:2]]
    ends = [row[place] for row, place in zip(whole, places, strict=False)]

    def cut(row: list[int], stops: list[int]) -> list[int]:
        return row[: min([row.index(stop) for stop in stops if stop in row], default=len(row))]

    one = with_files(bundle("rope"), tmp_path / "one", config={"eos_token_id": ends[0], "vocab_size": 61})
    result = posexport.load(one, threads=1).generate(PROMPTS, max_new_tokens=14)
    assert tokens(result) == [cut(row, ends[:1]) for row in whole]
    assert len(tokens(result)[0]) == places[0]
    assert result.completions[0].finish == "stop"
    assert posexport.load(one, threads=1).generate(PROMPTS, max_new_tokens=14, eos_token_id=[]).completions == (
        posexport.load(bundle("rope"), threads=1).generate(PROMPTS, max_new_tokens=14).completions
    )
    several = with_files(one, tmp_path / "several", generation_config={"eos_token_id": ends})
    assert tokens(posexport.load(several, threads=1).generate(PROMPTS, max_new_tokens=14)) == [
        cut(row, ends) for row in whole
    ]
    silent = with_files(one, tmp_path / "silent", generation_config={"eos_token_id": None})
    assert tokens(posexport.load(silent, threads=1).generate(PROMPTS, max_new_tokens=14)) == tokens(result)
    broken = with_files(one, tmp_path / "broken", generation_config={"eos_token_id": "</s>"})
    with pytest.raises(PosexportError, match=r"cannot use .*generation_config.json: .*; convert again"):
        posexport.load(broken, threads=1).generate(PROMPTS)


def test_a_stop_text_ends_before_it_wherever_tokens_end(session: Callable[..., Session]) -> None:
    opened = session("rope")
    whole = opened.generate(["the cat sat"], max_new_tokens=30).completions[0]
    assert whole.text is not None
    for start in (1, 5, 8):
        stop = whole.text[start : start + 4]
        result = opened.generate(["the cat sat"], max_new_tokens=30, stop_strings=["nowhere", stop]).completions[0]
        assert result.text == whole.text[: whole.text.index(stop)]
        assert result.finish == "stop"
        assert result.tokens == whole.tokens[: len(result.tokens)]
        assert len(result.tokens) < 30
    # a special token is in no text, and stops as well
    special = opened.generate(["the cat sat"], max_new_tokens=30, stop_strings=["<unk>"]).completions[0]
    assert special.tokens == (whole.tokens[: whole.tokens.index(1)] if 1 in whole.tokens else whole.tokens)


def test_streamed_pieces_make_the_text(session: Callable[..., Session]) -> None:
    opened = session("rope")
    pieces: list[tuple[int, str]] = []
    texts = ["the cat sat", "low"]
    result = opened.generate(texts, max_new_tokens=20, streamer=lambda row, piece: pieces.append((row, piece)))
    for row, one in enumerate(result.completions):
        parts = [piece for number, piece in pieces if number == row]
        assert "".join(parts) == one.text
        assert len(parts) > 5
    rows = [row for row, _ in pieces]
    assert rows != sorted(rows), "as it comes, not one after the other"
    # the text joins the prompt as if all had been decoded together
    whole = opened._texts.decode([*result.completions[0].prompt_tokens, *result.completions[0].tokens])
    assert whole == texts[0] + (result.completions[0].text or "")


# -- the cache -------------------------------------------------------------------------------------


class Spy:
    """A session that notes where what it is given and what it gives lies."""

    def __init__(self, session: Any) -> None:
        self.session, self.took, self.gave = session, [], []

    def get_inputs(self) -> Any:
        return self.session.get_inputs()

    def io_binding(self) -> Any:
        binding = self.session.io_binding()
        real = binding.bind_ortvalue_input

        def noted(name: str, value: Any) -> None:
            if name != NUM_LOGITS:
                self.took[-1][name] = value.data_ptr()
            real(name, value)

        self.took.append({})
        binding.bind_ortvalue_input = noted
        return binding

    def run_with_iobinding(self, binding: Any) -> None:
        self.session.run_with_iobinding(binding)
        self.gave.append([value.data_ptr() for value in binding.get_outputs()[1:]])


def test_the_cache_stays_where_it_is(session: Callable[..., Session]) -> None:
    opened = session("rope")
    of = decoder_interface(opened.inputs, opened.outputs)
    assert of is not None
    link = opened._chain.links[-1]
    spy = Spy(link.session)
    cache = Cache(Chain([replace(link, session=spy)]), of, rows=2)
    for _ in range(3):
        last = cache.read(np.full((2, 4), 7), np.ones((2, 4), np.int64))
    assert [list(took.values()) for took in spy.took[1:]] == spy.gave[:-1]
    assert len(spy.took[1]) == 4
    assert cache.slots == 12
    assert cache.tokens_B.tolist() == [12, 12]
    assert last.shape == (2, 61)
    assert last.base is None, "a view would keep the whole prompt's logits"


def test_a_failed_call_reads_nothing(session: Callable[..., Session]) -> None:
    opened = session("absolute")
    of = decoder_interface(opened.inputs, opened.outputs)
    assert of is not None
    cache = Cache(opened._chain, of, rows=1)
    first = np.arange(2, 22)[None]
    cache.read(first, np.ones_like(first))
    with pytest.raises(Exception, match="longer than 23 positions"):
        cache.read(first, np.ones_like(first))
    assert cache.slots == 20
    one = np.array([[9]])
    again = opened.run({"input_ids": np.concatenate((first, one), 1)})["logits"][:, -1]
    agree(cache.read(one, np.ones_like(one)), again, "model in float32", np.float32)


@pytest.mark.parametrize(("dtype", "name"), [(np.float32, "float"), (np.float16, "float16")])
def test_the_last_token_is_cut_out_where_it_lies(dtype: type[np.floating[Any]], name: str) -> None:
    from onnxruntime import OrtValue

    logits = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(dtype)
    last = LastToken("cpu", name)(OrtValue.ortvalue_from_numpy(logits))
    assert last.dtype == np.float32
    np.testing.assert_array_equal(last, logits[:, -1].astype(np.float32))


def test_generating_needs_no_torch(bundle: Callable[..., Path]) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import posexport\n"
        f"made = posexport.load({str(bundle('rope'))!r}, threads=1).generate(['the cat'], max_new_tokens=3)\n"
        "sys.stdout.write(str(len(made.completions[0].tokens)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.stderr) == ("3", "")


# -- posexport run on a decoder --------------------------------------------------------------------


def test_run_continues_a_cache(session: Callable[..., Session]) -> None:
    opened = session("rope")
    ids = np.arange(2, 12).reshape(1, 10)
    whole = opened.run({"input_ids": ids})
    first = opened.run({"input_ids": ids[:, :6]})
    past = {name.replace("present", "past_key_values"): y for name, y in first.items() if name != "logits"}
    second = opened.run({"input_ids": ids[:, 6:], **past})
    parts = np.concatenate((first["logits"], second["logits"]), 1)
    agree(parts, whole["logits"], "model in float32", np.float32)
    as_lists = {name: y.tolist() for name, y in past.items()}
    np.testing.assert_array_equal(opened.run({"input_ids": ids[:, 6:], **as_lists})["logits"], second["logits"])


def test_texts_of_a_decoder_share_a_batch(session: Callable[..., Session]) -> None:
    opened = session("rope")
    texts = ["the cat sat on the mat", "low"]
    fed = opened.tokenize(texts)
    assert fed["attention_mask"].sum(1).tolist() == [len(opened.tokenize([text])["input_ids"][0]) for text in texts]
    batched = opened.run_texts(texts)["logits"]
    alone = opened.run_texts(texts[1:])["logits"]
    row = batched[1][fed["attention_mask"][1] == 1]
    agree(row, alone[0], "model in float32", np.float32)


KEY, VALUE = "past_key_values.0.key", "past_key_values.0.value"


def cached(**changes: Any) -> dict[str, Any]:
    """A right call of the bundle of two layers behind four tokens, changed."""
    names = [f"past_key_values.{layer}.{what}" for layer in range(2) for what in ("key", "value")]
    feeds: dict[str, Any] = {"input_ids": np.array([[5, 6, 7]])}
    feeds |= {name: np.zeros((1, 5, 4, 4), np.float32) for name in names}
    feeds |= changes
    return {name: value for name, value in feeds.items() if value is not None}


@pytest.mark.parametrize(
    ("feeds", "says"),
    [
        (
            cached(**{KEY: np.zeros((1, 5, 3, 4), np.float32)}),
            "past_key_values.0.value has past_sequence_length 4, past",
        ),
        (
            cached(**{VALUE: None}),
            r"missing input past_key_values.0.value: 3 of 4 cache inputs .* or none for an empty",
        ),
        (
            cached(**{"past_key_values.2.key": np.zeros((1, 5, 4, 4), np.float32)}),
            r"unknown input past_key_values.2.key; .* attention_mask, position_ids, \S+.0.key to \S+.1.value",
        ),
        (cached(**{KEY: np.zeros((1, 5, 4, 4), np.int64)}), "past_key_values.0.key must hold real numbers, got int64"),
        (cached(**{KEY: np.zeros((1, 5, 4, 4), np.float16)}), "holds float16, this bundle's cache is float32"),
        (cached(**{KEY: np.full((1, 5, 4, 4), np.nan)}), r"past_key_values.0.key holds nan at \[0, 0, 0, 0\]"),
        (
            cached(**{KEY: np.zeros((1, 4, 4, 4), np.float32)}),
            r"needs the axes \[batch_size, 5, past_sequence_length, 4",
        ),
        (cached(**{KEY: np.zeros((2, 5, 4, 4), np.float32)}), "batch_size 2, input_ids has 1; give both the same"),
        (
            cached(attention_mask=np.ones((1, 6), int)),
            "length 6, but past_sequence_length 4 and sequence_length 3 make 7",
        ),
        (cached(attention_mask=np.ones((1, 8), int)), "length 8, but .* make 7; give a mask over past and new tokens"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1]]}, "length 2, but past_sequence_length 0 .* make 3"),
        ({"input_ids": [[1, 2, 3]] * 2, "attention_mask": [[0, 1, 1], [1, 0, 1]]}, "padding between tokens in row 1"),
        (cached(attention_mask=[[1, 1, 1, 0, 1, 1, 1]]), "padding between tokens in row 0; pad before the first token"),
        (cached(input_ids=np.zeros((1, 20), int)), "sequence_length 20 behind 4 past tokens, .* takes at most 23"),
        (
            cached(input_ids=None),
            "missing input input_ids; this bundle takes input_ids, attention_mask, position_ids, past_key",
        ),
        (cached(input_ids=np.zeros((1, 0), int)), "input_ids has sequence_length 0; give at least 1"),
        ({"input_ids": [[1, 61]]}, "input_ids holds 61 at .* ids from 0 to 60"),
    ],
)
def test_a_cache_that_does_not_fit_is_refused(
    feeds: dict[str, Any], says: str, session: Callable[..., Session]
) -> None:
    with pytest.raises(PosexportError, match=says):
        session("absolute").run(feeds)


@pytest.mark.parametrize(
    "feeds", [cached(), cached(attention_mask=[[0, 1, 1, 1, 1, 1, 0]]), cached(input_ids=np.zeros((1, 19), int))]
)
def test_what_fits_is_taken(feeds: dict[str, Any], session: Callable[..., Session]) -> None:
    out = session("absolute").run(feeds)
    assert out["present.0.key"].shape[2] == 4 + feeds["input_ids"].shape[1]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "options", "says"),
    [
        ([], {}, "got no prompts"),
        ("the cat", {}, r"must be a list of texts, got one text; give \[text\]"),
        (["the"], {"stop_string": "x"}, r"no option stop_string; did you mean stop_strings\?"),
        (["the"], {"do_sample": False, "top_p": 0.9}, "do_sample=False takes the likeliest token, and top_p=0.9 draws"),
        ([""], {}, r"prompt 0 \(''\) has no tokens"),
        (["the", "  "], {}, r"prompt 1 \('  '\) has no tokens"),
        ([[1], []], {}, "prompt 1 is empty; give at least one token"),
        ([[1], "the"], {}, "prompt 1 is neither a text nor a list of token ids"),
        ([[1.5]], {}, "prompt 0 is neither"),
        ([7], {}, "prompt 0 is neither"),
        ([[1, 61]], {}, "prompt 0 holds the id 61; input_ids takes ids from 0 to 60"),
        ([[-1]], {}, "prompt 0 holds the id -1"),
        (["the"], {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        (["the"], {"prefill_chunk_size": 0}, "prefill_chunk_size must be at least 1 token, got 0"),
        (["the"], {"temperature": -0.5}, "temperature must be 0 .* or more, got -0.5"),
        (["the"], {"temperature": float("nan")}, "temperature must be .* got nan"),
        (["the"], {"top_k": -1}, "top_k must be .* got -1"),
        (["the"], {"top_p": 0.0}, "top_p must be a probability above 0 and at most 1, got 0.0"),
        (["the"], {"top_p": 1.5}, "top_p must be .* got 1.5"),
        (["the"], {"temperature": 1.0, "seed": -3}, "seed must be 0 or more, got -3"),
        (["the"], {"stop_strings": [""]}, "a stop string is empty"),
        (["the"], {"eos_token_id": ["</s>"]}, "eos_token_id must be a token id or a list"),
        (["\ud800"], {}, "prompt 0 .* is not Unicode"),
    ],
)
def test_bad_input_is_a_sentence(
    prompts: Any, options: dict[str, Any], says: str, session: Callable[..., Session]
) -> None:
    with pytest.raises(PosexportError, match=says):
        session("absolute").generate(prompts, **options)


@pytest.mark.all
def test_a_bundle_that_is_no_decoder_says_what_it_is(bundle: Callable[..., Path], tmp_path: Path) -> None:
    features = bundle("rope", "--task", "features")
    with pytest.raises(
        PosexportError,
        match="this is a features model; generate needs a text-generation or text2text-generation one",
    ):
        posexport.load(features, threads=1).generate(["the cat"])
    sizes = [word for pair in SIZES[:-1] for word in ("--set", pair)]
    done = posexport_command("convert", "encoder-nope", "-o", tmp_path / "e", *sizes, "--no-verify", "--threads", "1")
    assert done.exit_code == 0, done.output
    with pytest.raises(PosexportError, match="this is a features model; generate needs"):
        posexport.load(tmp_path / "e", threads=1).generate([[1, 2]])


@pytest.fixture
def bare(bundle: Callable[..., Path], tmp_path: Path) -> Path:
    """A decoder without a tokenizer."""
    directory = tmp_path / "bare"
    shutil.copytree(bundle("rope"), directory)
    (directory / "tokenizer.json").unlink()
    seal(directory, read(directory))
    return directory


def test_without_a_tokenizer_ids_go_and_texts_do_not(bare: Path) -> None:
    opened = posexport.load(bare, threads=1)
    result = opened.generate([[5, 6]], max_new_tokens=4).completions[0]
    assert result.text is None
    assert len(result.tokens) == 4
    with pytest.raises(PosexportError, match=r"has no tokenizer.json, so it takes no texts; .*--tokenizer FILE"):
        opened.generate(["the cat"])
    with pytest.raises(PosexportError, match=r"no tokenizer.json, so it gives no text to stop at"):
        opened.generate([[5, 6]], stop_strings=["x"])
    assert list(opened.stream([5, 6], max_new_tokens=4)) == result.tokens
    pieces: list[tuple[int, int]] = []
    opened.generate([[5, 6], [7]], max_new_tokens=4, streamer=lambda *piece: pieces.append(piece))
    assert [token for row, token in pieces if row == 0] == result.tokens
    with pytest.raises(PosexportError, match="beams cannot be streamed"):
        list(opened.stream([5, 6], num_beams=2))


@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_the_command_prints_ids_without_a_tokenizer(bare: Path, tmp_path: Path, stream: tuple[str, ...]) -> None:
    (tmp_path / "ids.json").write_text('{"input_ids": [[5, 6]]}')
    tokens = posexport.load(bare, threads=1).generate([[5, 6]], max_new_tokens=4).completions[0].tokens
    done = posexport_command("generate", bare, "--inputs", tmp_path / "ids.json", "--max-new-tokens", "4", *stream)
    assert done.stdout.split() == [str(token) for token in tokens]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", "the cat"], "give ids by --inputs, or convert it again with --tokenizer FILE"),
        (["--stop-strings", "x"], "leave --stop-strings out, or give --eos-token-id"),
        (["--stream", "--num-beams", "2"], "2 beams cannot be streamed; give --num-beams 1"),
        (["--greedy", "--temperature", "0.5"], "--greedy takes the likeliest token, and --temperature 0.5 draws"),
        (["--min-new-tokens", "9", "--max-new-tokens", "3"], "--min-new-tokens 9 is more than --max-new-tokens 3"),
        (["--decoder-prompt", "a"], "and no --decoder-prompt"),
    ],
)
def test_errors_of_the_command_name_its_options(bare: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "ids.json").write_text('{"input_ids": [[5, 6]]}')
    inputs = [] if "--prompt" in arguments else ["--inputs", tmp_path / "ids.json"]
    done = posexport_command("generate", bare, *inputs, *arguments)
    assert says in str(done.exception)


def test_logits_that_are_no_numbers_are_a_sentence(bundle: Callable[..., Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bundle("rope"), broken)
    model = ir.load(broken / "model.onnx")
    for name, value in model.graph.initializers.items():
        if name.endswith("token.weight"):
            value.const_value = ir.tensor(np.full(value.shape.numpy(), np.nan, np.float32))  # type: ignore[union-attr]
    ir.save(model, broken / "model.onnx")
    for spare in broken.glob("*.data"):
        spare.unlink()
    seal(broken, read(broken))
    with pytest.raises(PosexportError, match=r"logits are not numbers \(NaN\); verify the bundle"):
        posexport.load(broken, threads=1).generate([[5, 6]])


# -- the command -----------------------------------------------------------------------------------


def test_the_command_prints_the_completion_and_tells_the_speed(bundle: Callable[..., Path]) -> None:
    directory = bundle("rope")
    expected = posexport.load(directory, threads=1).generate(["the cat"], max_new_tokens=9).completions[0]
    arguments = ["generate", directory, "--prompt", "the cat", "--max-new-tokens", "9", "--threads", "1"]
    done = posexport_command(*arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{expected.text}\n"
    assert re.fullmatch(r"prompt: 2 tokens \(\d+ tok/s\); generation: 8 tokens \(\d+ tok/s\)\n", done.stderr)
    assert posexport_command(*arguments, "--stream").stdout == done.stdout
    done = posexport_command(*arguments, "--json")
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["completions"] == [
        {"prompt": "the cat", "text": expected.text, "tokens": expected.tokens, "finish": "length"}
    ]
    speed = document["speed"]
    agree(speed["decode_tokens_per_second"], 8 / speed["decode_seconds"], "rounded", np.float64)
    agree(speed["prompt_tokens_per_second"], 2 / speed["prompt_seconds"], "rounded", np.float64)


def test_several_prompts_stand_one_below_the_other(bundle: Callable[..., Path]) -> None:
    directory = bundle("absolute")
    prompts = ["--prompt", "the cat", "--prompt", "low low"]
    options = ["--temperature", "0.8", "--top-k", "30", "--top-p", "0.9", "--seed", "4", "--max-new-tokens", "40"]
    done = posexport_command("generate", directory, *prompts, *options, "--threads", "1")
    assert done.exit_code == 0, done.output
    expected = posexport.load(directory, threads=1).generate(
        ["the cat", "low low"], max_new_tokens=40, temperature=0.8, top_k=30, top_p=0.9, seed=4
    )
    texts = [one.text for one in expected.completions]
    assert done.stdout == f"--- the cat\n{texts[0]}\n\n--- low low\n{texts[1]}\n"
    streamed = posexport_command(
        "generate", directory, *prompts, *options, "--threads", "1", "--stream", "--prefill-chunk-size", "1"
    )
    assert streamed.stdout == done.stdout
    assert "--- the cat ends early: it takes at most 23 tokens" in done.stderr


def test_texts_are_told_in_turn() -> None:
    told: list[str] = []
    turn = SequentialStreamer(["a", "b", "c"], told.append)
    assert told == []
    for row, piece in [(1, "1"), (0, "x"), (1, "2"), (0, "y"), (2, "!")]:
        turn(row, piece)
    assert "".join(told) == "--- a\nxy"
    turn.finish()
    assert "".join(told) == "--- a\nxy\n\n--- b\n12\n\n--- c\n!\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", ""], "prompt 0 ('') has no tokens"),
        (["--prompt", "low " * 40], "is longer than 23 positions"),
        (["--prompt", "low", "--top-p", "2"], "--top-p must be a probability"),
        (["--prompt", "low", "--stream", "--json"], "give one of them"),
        (["--prompt", "low", "--max-new-tokens", "0"], "0 is not in the range"),
        (["--prompt", "low", "--provider", "tpu"], "unknown provider 'tpu'"),
        ([], "give --prompt or --inputs, at least one of them"),
    ],
)
def test_bad_input_on_the_command_line_exits_2(arguments: list[str], says: str, bundle: Callable[..., Path]) -> None:
    done = run_posexport("generate", bundle("absolute"), *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if "--json" in arguments:
        assert json.loads(done.stdout)["exit_code"] == 2
    else:
        assert done.stdout == ""


# -- logits of a prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--cache", "static")])
def test_a_prompt_computes_the_logits_of_its_last_token(
    options: tuple[str, ...], session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[list[int]] = []

    def spied(*arguments: Any) -> Any:
        outputs = run_bound(*arguments)
        computed.append(outputs[0].shape())
        return outputs

    monkeypatch.setattr("posexport.run.cache.run_bound", spied)
    session("rope", *options).generate(PROMPTS, max_new_tokens=2)
    assert computed == [[3, 1, 61]] * 2


def test_without_that_input_a_prompt_is_read_in_chunks(
    bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(posexport.load(bundle("rope"), threads=1).generate(PROMPTS, max_new_tokens=4))
    older = tmp_path / "older"
    shutil.copytree(bundle("rope"), older)
    model = ir.load(older / "model.onnx")
    model.graph.inputs.remove(next(value for value in model.graph.inputs if value.name == NUM_LOGITS))
    ir.save(model, older / "model.onnx")
    # logits of 12 tokens at most: three rows of four
    monkeypatch.setattr("posexport.run.cache._LOGITS", 12 * 61)
    lengths: list[int] = []
    read = Cache.read
    monkeypatch.setattr(Cache, "read", lambda self, ids, keep: lengths.append(ids.shape[1]) or read(self, ids, keep))
    session = posexport.load(older, threads=1, check=False)
    assert tokens(session.generate(PROMPTS, max_new_tokens=4)) == expected
    assert lengths == [4, 4, 1, 1, 1, 1]
    lengths.clear()
    session.generate(PROMPTS, max_new_tokens=1, prefill_chunk_size=5)
    assert lengths == [5, 4]


def test_run_computes_as_many_logits_as_a_caller_asks_for(session: Callable[..., Session]) -> None:
    decoder = session("rope")
    ids = [[5, 6, 7], [8, 9, 10]]
    logits = decoder.run({"input_ids": ids})["logits"]
    agree(decoder.run({"input_ids": ids, NUM_LOGITS: 2})["logits"], logits[:, -2:], "encoding", np.float32)
    for wrong in (-1, 1.0, [1, 2], "two"):
        with pytest.raises(PosexportError, match=f"{NUM_LOGITS} takes the number of a row's last tokens .* got"):
            decoder.run({"input_ids": ids, NUM_LOGITS: wrong})
