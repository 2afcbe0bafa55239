"""Graphs that run in turn as one, and encoder-decoders that generate through them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnxruntime
import pytest
import torch
from click.testing import CliRunner

import posexport
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.proof.subjects.runner import Remembered, RememberingSession
from posexport.run.bundle.read import read
from posexport.run.bundle.write import seal
from posexport.run.chain import Chain, Link
from posexport.run.ort_values import run as run_session
from posexport.run.providers import make_session
from posexport.run.session import Session
from posexport.sources import builtin

SIZES = ("layers=2", "hidden=20", "heads=5", "feedforward=37", "vocab=61", "tied=false")
CORPUS = "low lower newest widest happier low low the cat sat on the mat and the dog ran to the long river\n"
PROMPTS = [[5, 6, 7, 8], [9], [3, 1, 4, 1, 5, 9, 2, 6, 5]]
START = 2
LIMIT = 23


# -- the chain -------------------------------------------------------------------------------------


class Counted:
    """A session that counts its runs."""

    def __init__(self, text: str) -> None:
        header = '<ir_version: 8, opset_import: ["": 18]> '
        self.session = make_session(onnx.parser.parse_model(header + text).SerializeToString(), threads=1)
        self.runs: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, names: list[str], feeds: dict[str, Any], options: Any = None) -> Any:
        self.runs.append(names)
        return self.session.run(names, feeds, options)


@pytest.fixture
def chain() -> Chain:
    """``twice = 2 x``, ``more = x + 1``; ``answer = twice - y``."""
    first = Counted("a (float[n] x) => (float[n] d, float[n] m) <float[1] one = {1}> {d = Add(x, x) m = Add(x, one)}")
    second = Counted("b (float[n] x, float[n] y) => (float[n] z) {z = Sub(x, y)}")
    links = [
        Link(first, {"x": "x"}, {"d": "twice", "m": "more"}),
        Link(second, {"x": "twice", "y": "y"}, {"z": "answer"}),
    ]
    return Chain(links)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_what_one_gives_is_fed_to_the_next(chain: Chain) -> None:
    feeds = {"x": numbers(3, 4), "y": numbers(1, 10)}
    answer, more = chain.run(["answer", "more"], feeds)
    assert (answer.tolist(), more.tolist()) == ([5, -2], [4, 5])
    assert set(feeds) == {"x", "y"}


def test_an_output_of_an_earlier_graph_may_be_an_input(chain: Chain) -> None:
    feeds = {"twice": numbers(6), "y": numbers(1)}
    assert chain.needs(["answer"], feeds) == {"y"}
    assert chain.run(["answer"], feeds)[0].tolist() == [5]
    assert [link.session.runs for link in chain.links] == [[], [["z"]]]
    more, answer = chain.run(["more", "answer"], {**feeds, "x": numbers(2)})
    assert (more.tolist(), answer.tolist()) == ([3], [5])
    assert chain.links[0].session.runs == [["m"]]


def test_nobody_runs_for_nothing(chain: Chain) -> None:
    (more,) = chain.run(["more"], {"x": numbers(3)})
    assert more.tolist() == [4]
    assert [link.session.runs for link in chain.links] == [[["m"]], []]
    chain.run(["answer"], {"x": numbers(3), "y": numbers(1)})
    assert [link.session.runs for link in chain.links] == [[["m"], ["d"]], [["z"]]]


def test_what_it_takes_and_gives(chain: Chain) -> None:
    assert chain.types == {"x": "tensor(float)", "y": "tensor(float)"}
    assert chain.outputs == {"twice", "more", "answer"}
    assert (chain.needs(["more"]), chain.needs(["answer"])) == ({"x"}, {"x", "y"})
    assert chain.providers == ["CPUExecutionProvider"]


def test_what_every_graph_takes(chain: Chain) -> None:
    feeds = {"x": numbers(3), "y": numbers(1)}
    found = [{name: array.tolist() for name, array in given.items()} for given in chain.feeds_per_graph(feeds)]
    assert found == [{"x": [3]}, {"x": [6], "y": [1]}]
    # all that is known before the last graph's own inputs come
    assert {name: array.tolist() for name, array in chain.before_last({"x": numbers(3)}).items()} == {"x": [6]}
    assert Chain(chain.links[1:]).before_last({}) == {}


# -- generation ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder, made = tmp_path_factory.mktemp("bundles"), dict[tuple[str, ...], Path]()
    (folder / "corpus.txt").write_text(CORPUS)
    tokenizer = ["tokenizer", "train", str(folder / "corpus.txt"), "--vocab-size", "61"]
    done = CliRunner().invoke(group, [*tokenizer, "-o", str(folder / "tokenizer.json")])
    assert done.exit_code == 0, done.output

    def convert(*options: str) -> Path:
        if options not in made:
            made[options] = folder / str(len(made))
            sizes = [word for pair in SIZES for word in ("--set", pair)]
            arguments = ["convert", options[0], "-o", str(made[options]), *sizes, "--threads", "1", "--no-verify"]
            arguments += ["--tokenizer", str(folder / "tokenizer.json"), *options[1:]]
            done = CliRunner().invoke(group, arguments)
            assert done.exit_code == 0, done.output
            (made[options] / "config.json").write_text(json.dumps({"decoder_start_token_id": START}))
            seal(made[options], read(made[options]))
        return made[options]

    return convert


@pytest.fixture(scope="module")
def session(bundle: Callable[..., Path]) -> Session:
    return posexport.load(bundle("encoder-decoder-t5"), threads=1)


def greedy(prompt: list[int], start: list[int], steps: int) -> list[int]:
    """PyTorch's tokens: everything read again at every step, no cache."""
    module = builtin.builtin_source("encoder-decoder-t5", task=None, settings_given=SIZES).module
    ids = list(start)
    with torch.inference_mode():
        for _ in range(steps):
            logits = module(input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([ids]))[0]
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(start) :]


@pytest.mark.all
def test_it_answers_as_pytorch_does(session: Session) -> None:
    made = session.generate(PROMPTS, max_new_tokens=12)
    found = [one.tokens for one in made.completions]
    assert found == [greedy(prompt, [START], 12) for prompt in PROMPTS]
    assert len({tuple(row) for row in found}) == 3
    assert made.prompt_tokens == sum(map(len, PROMPTS)) + 3
    assert {one.finish for one in made.completions} == {"length"}


def test_each_is_what_it_is_alone(session: Session) -> None:
    together = [one.tokens for one in session.generate(PROMPTS, max_new_tokens=9).completions]
    assert together == [session.generate([p], max_new_tokens=9).completions[0].tokens for p in PROMPTS]
    sampled = [one.tokens for one in session.generate(PROMPTS, max_new_tokens=9, temperature=2.0).completions]
    alone = [session.generate([p], max_new_tokens=9, temperature=2.0).completions[0].tokens for p in PROMPTS]
    assert sampled == alone
    assert sampled != together


def test_the_encoder_runs_once(session: Session) -> None:
    first, last = session._chain.links
    noted = Noted(first.session)
    spied = Session(session._directory, session.manifest, Chain([dataclasses.replace(first, session=noted), last]))
    assert spied.generate(PROMPTS, max_new_tokens=9).completions
    assert noted.runs == 1


class Noted:
    def __init__(self, session: Any) -> None:
        self.session, self.runs = session, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, *arguments: Any) -> Any:
        self.runs += 1
        return self.session.run(*arguments)


def test_a_decoder_that_begins_with_more(session: Session) -> None:
    starts = [[START, 7, 8], [START], [START, 9]]
    made = session.generate(PROMPTS, decoder_prompts=starts, max_new_tokens=6)
    wanted = [greedy(prompt, start, 6) for prompt, start in zip(PROMPTS, starts, strict=True)]
    assert [one.tokens for one in made.completions] == wanted
    assert [one.prompt_tokens for one in made.completions] == starts


def test_texts_stream_stop_and_begin(session: Session) -> None:
    told: list[str] = [""] * 2

    def tell(row: int, piece: str) -> None:
        told[row] += piece

    made = session.generate(["the cat", "low lower"], max_new_tokens=8, streamer=tell)
    assert told == [one.text for one in made.completions]
    arrays = session.tokenize(["the cat", "low lower"])
    assert set(arrays) == {"input_ids", "attention_mask"}
    by_arrays = session.generate(arrays, max_new_tokens=8)
    assert [one.tokens for one in by_arrays.completions] == [one.tokens for one in made.completions]
    tokens = made.completions[0].tokens
    place = next(number for number, token in enumerate(tokens) if number and token not in tokens[:number])
    stopped = session.generate(["the cat"], max_new_tokens=8, eos_token_id=[tokens[place]]).completions[0]
    assert (stopped.tokens, stopped.finish) == (tokens[:place], "stop")
    begun = session.generate(["the cat"], decoder_prompts=["low"], max_new_tokens=3).completions[0]
    assert begun.prompt_tokens == [START, *session._texts.pieces("low")]
    assert len(begun.prompt_tokens) > 1


@pytest.mark.all
def test_a_full_table_lets_rows_go_on_alone(bundle: Callable[..., Path]) -> None:
    """Rows of different lengths share slots; the shorter ones must not end early, and read their own encoder row."""
    folder = bundle("encoder-decoder-absolute", "--set", f"max_positions={LIMIT}")
    opened = posexport.load(folder, threads=1)
    starts = [[START, *range(5, 15)], [START], [START, 9, 8]]
    made = opened.generate(PROMPTS, decoder_prompts=starts, max_new_tokens=40)
    alone = [
        opened.generate([p], decoder_prompts=[s], max_new_tokens=40).completions[0]
        for p, s in zip(PROMPTS, starts, strict=True)
    ]
    assert [one.tokens for one in made.completions] == [one.tokens for one in alone]
    assert {one.finish for one in made.completions} == {"limit"}
    assert [len(one.tokens) for one in made.completions] == [LIMIT - len(start) + 1 for start in starts]


@pytest.mark.all
def test_a_cache_of_fixed_size(bundle: Callable[..., Path], session: Session) -> None:
    fixed = posexport.load(bundle("encoder-decoder-t5", "--cache", "static"), threads=1)
    made, wanted = (each.generate(PROMPTS, max_new_tokens=12).completions for each in (fixed, session))
    assert [one.tokens for one in made] == [one.tokens for one in wanted]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([],), "got no prompts; give at least one"),
        (([[]],), "prompt 0 is empty; give at least one token"),
        (([[5], [61]],), "prompt 1 holds the id 61; input_ids takes ids from 0 to 60"),
        (([[5], "a"],), "prompt 1 is neither a text nor a list of token ids"),
        (({"input_ids": [[5]], "other": 1},), "unknown input other; this bundle takes input_ids, attention_mask"),
        (({},), "missing input input_ids"),
        (([[5], [6]], [[2]]), "got 1 decoder_prompts and 2 prompts; give a list with one for each"),
        (([[5]], "low"), "decoder_prompts must be a list of texts, got one text"),
        (([[5]], [[]]), "decoder prompt 0 is empty"),
        (([[5]], [[61]]), "prompt 0 holds the id 61; decoder_input_ids takes ids from 0 to 60"),
    ],
)
def test_bad_prompts_are_one_sentence(arguments: tuple[Any, ...], says: str, session: Session) -> None:
    prompts, *rest = arguments
    with pytest.raises(PosexportError, match=says):
        session.generate(prompts, decoder_prompts=rest[0] if rest else None)


def test_without_a_start_token_it_says_so(bundle: Callable[..., Path], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bundle("encoder-decoder-t5"), tmp_path / "b")
    (tmp_path / "b" / "config.json").unlink()
    seal(tmp_path / "b", read(tmp_path / "b"))
    opened = posexport.load(tmp_path / "b", threads=1)
    with pytest.raises(PosexportError, match="has no decoder_start_token_id; give decoder_prompts"):
        opened.generate([[5]])
    assert opened.generate([[5]], decoder_prompts=[[START]], max_new_tokens=1).completions[0].tokens


def test_on_the_command_line(bundle: Callable[..., Path], session: Session, tmp_path: Path) -> None:
    folder = str(bundle("encoder-decoder-t5"))
    run = CliRunner().invoke
    said = run(group, ["generate", folder, "--prompt", "the cat", "--max-new-tokens", "5", "--json", "--threads", "1"])
    assert said.exit_code == 0, said.output
    wanted = session.generate(["the cat"], max_new_tokens=5).completions[0]
    assert json.loads(said.stdout)["completions"][0]["tokens"] == wanted.tokens
    np.savez(tmp_path / "x.npz", **session.tokenize(["the cat"]))
    arrays = ["generate", folder, "--inputs", str(tmp_path / "x.npz"), "--max-new-tokens", "5", "--threads", "1"]
    said = run(group, arrays)
    assert said.exit_code == 0, said.output
    assert said.stdout == f"{wanted.text}\n"
    said = run(group, [*arrays, "--decoder-prompt", "low"])
    assert said.exit_code == 0, said.output
    begun = session.generate(["the cat"], decoder_prompts=["low"], max_new_tokens=5).completions[0]
    assert said.stdout == f"{begun.text}\n"
    said = run(group, [*arrays, "--prompt", "a"])
    assert "give --prompt or --inputs, not both" in str(said.exception)


@pytest.mark.all
def test_a_decoder_alone_takes_no_decoder_prompts(bundle: Callable[..., Path]) -> None:
    opened = posexport.load(bundle("decoder-rope"), threads=1)
    with pytest.raises(PosexportError, match="this bundle is a decoder alone"):
        opened.generate([[5]], decoder_prompts=[[2]])


def test_an_answer_is_remembered_for_the_same_inputs_only() -> None:
    asked = []

    def run(names: list[str], feeds: dict[str, np.ndarray]) -> int:
        asked.append((names, {name: array.copy() for name, array in feeds.items()}))
        return len(asked)

    remembered = Remembered(run)
    x = np.zeros((2, 3), np.float32)
    assert [remembered(["y"], {"x": x}) for _ in range(3)] == [1, 1, 1]
    assert remembered(["y"], {"x": x.copy()}) == 1
    x[1, 2] = 1  # the same array with another number in it
    assert remembered(["y"], {"x": x}) == 2
    assert remembered(["y"], {"x": x.reshape(3, 2)}) == 3
    assert remembered(["z"], {"x": x}) == 4
    assert remembered(["z"], {"w": x}) == 5


def test_of_large_answers_the_last_one_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of 30 seconds of sound, in float64, are gigabytes."""
    monkeypatch.setattr("posexport.proof.subjects.runner.ROOM", 40)
    asked: list[int] = []

    def run(size: int) -> list[np.ndarray]:
        asked.append(size)
        return [np.zeros(size)]

    several, none = Remembered(lambda x: run(len(x)), 2), Remembered(lambda x: run(len(x)), 2, 40)
    for remembered, found in ((several, [3, 4, 9, 12, 9]), (none, [3, 4, 9, 9, 12, 9])):
        asked.clear()
        for size in (3, 4, 3, 9, 9, 12, 9):
            assert remembered(np.ones(size))[0].shape == (size,)
        assert asked == found


def test_answers_in_bfloat16_are_remembered_too() -> None:
    """NumPy has no such numbers: the proof of a bf16 Whisper ended in a TypeError."""
    remembered = Remembered(lambda x: float(x.sum()))
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert remembered(x) == remembered(x.clone()) == -0.5
    x[1] = -1.9921875  # the next number of bfloat16
    assert remembered(x) == -0.4921875


def test_a_session_remembers_bfloat16() -> None:
    """ONNX Runtime's own run takes none: on a card proofs of encoder-decoders in bf16 ended here."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (bfloat16[n] x) => (bfloat16[n] y) {y = Identity (x)}'
    )
    session = RememberingSession(onnxruntime.InferenceSession(model.SerializeToString()))
    x = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    (y,) = run_session(session, ["y"], {"x": x})
    assert y.dtype == x.dtype
    assert y.tolist() == [1.5, -2.0]
    assert run_session(session, ["y"], {"x": x}, onnxruntime.RunOptions())[0] is y
    x[1] = -1.9921875
    assert run_session(session, ["y"], {"x": x})[0].tolist() == [1.5, -1.9921875]
