"""Options of generation: from a call, a folder and the command line; defaults and errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import posexport
from posexport.cli import group
from posexport.errors import PosexportError
from posexport.run.bundle.read import read
from posexport.run.bundle.write import seal
from posexport.run.cache import Cache
from posexport.run.generate.config import GenerationConfig
from posexport.run.generate.file import Stated, read_stated, remarks
from posexport.run.generate.resolve_options import resolve
from posexport.run.logits.processor import NONE, TokenRows
from posexport.run.on_device import GatherRows
from posexport.run.session import Session
from posexport.run.whisper import WhisperTokens, begin, language_token, segments, with_room
from tests.tolerances import agree

GOLDEN = Path(__file__).parents[1] / "golden"
PROMPTS = [[5, 9, 5, 9, 7, 3], [8, 4, 11]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("options") / "gpt2"
    posexport.convert(str(GOLDEN / "gpt2-lmheadmodel"), target, verify=False, precision="fp32")
    return target


@pytest.fixture
def stating(bundle: Path, tmp_path: Path) -> Callable[..., Session]:
    """The bundle with a generation_config.json."""

    def opened(**stated: Any) -> Session:
        target = tmp_path / "stated"
        shutil.copytree(bundle, target)
        (target / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **stated}))
        seal(target, read(target))
        return posexport.load(target, threads=1)

    return opened


def tokens(result: Any) -> list[list[int]]:
    return [one.tokens for one in result.completions]


# -- what counts -----------------------------------------------------------------------------------


def resolved(asked: dict[str, Any], stated: dict[str, Any], whisper: bool = False) -> tuple[dict[str, Any], list[str]]:
    tokens = WhisperTokens() if whisper else None
    file = {name: value for name, value in stated.items() if not (name == "do_sample" and value is False)}
    options, followed = resolve(GenerationConfig(**asked), Stated(options=GenerationConfig(**file), whisper=tokens))
    changed = {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None}
    return changed, list(followed)


@pytest.mark.parametrize(
    ("asked", "stated", "expected", "followed"),
    [
        ({}, {}, {"do_sample": False}, []),
        ({}, {"temperature": 0.6, "top_p": 0.9}, {"do_sample": False}, []),
        ({}, {"do_sample": True}, {"do_sample": True}, ["do_sample"]),
        (
            {},
            {"do_sample": True, "temperature": 0.6, "repetition_penalty": 1.1},
            {"do_sample": True, "temperature": 0.6, "repetition_penalty": 1.1},
            ["do_sample", "temperature", "repetition_penalty"],
        ),
        ({"do_sample": False}, {"do_sample": True, "top_k": 9}, {"do_sample": False}, []),
        ({"temperature": 0}, {"do_sample": True, "top_k": 9}, {"do_sample": False}, []),
        ({"top_p": 0.5}, {"temperature": 0.7}, {"do_sample": True, "top_p": 0.5, "temperature": 0.7}, ["temperature"]),
        ({"max_new_tokens": 5}, {"max_length": 20}, {"do_sample": False, "max_new_tokens": 5}, []),
        ({"max_length": 9}, {"max_new_tokens": 20}, {"do_sample": False, "max_length": 9}, []),
        ({}, {"num_beams": 1, "early_stopping": True}, {"do_sample": False, "num_beams": 1}, []),
        ({"num_beams": 1}, {"num_beams": 4, "length_penalty": 2.0}, {"do_sample": False, "num_beams": 1}, []),
        (
            {},
            {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 0},
            {"do_sample": False, "num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 0},
            ["num_beams", "length_penalty"],
        ),
    ],
)
def test_a_call_overrides_the_folder(
    asked: dict[str, Any], stated: dict[str, Any], expected: dict[str, Any], followed: list[str]
) -> None:
    options, said = resolved(asked, stated)
    assert options == {"seed": 0, "recompute": True, **expected}
    assert said == followed


def test_whisper_samples_at_a_temperature_of_the_call_alone() -> None:
    assert not resolved({}, {"do_sample": True, "temperature": 0.5}, whisper=True)[0]["do_sample"]
    options, _ = resolved({"temperature": 0.4}, {"num_beams": 5}, whisper=True)
    assert (options["do_sample"], options["num_beams"], options["temperature"]) == (True, 1, 0.4)


def test_new_tokens_are_64_unless_someone_says_otherwise(stating: Callable[..., Session]) -> None:
    assert GenerationConfig().most(7) == 64
    assert GenerationConfig(max_length=20).most(7) == 13
    session = stating(max_length=10)
    result = session.generate(PROMPTS, eos_token_id=[])
    assert [len(row) for row in tokens(result)] == [4, 7]
    assert result.followed == {"max_length": 10}
    assert [len(row) for row in tokens(session.generate(PROMPTS, eos_token_id=[], max_new_tokens=6))] == [6, 6]
    with pytest.raises(PosexportError, match=r"prompt 0 has 6 tokens and max_length is 6, .* give max_new_tokens"):
        session.generate(PROMPTS, max_length=6)


def test_a_folder_that_samples_samples_by_its_seed(stating: Callable[..., Session]) -> None:
    session = stating(do_sample=True, temperature=3.0, top_k=0)
    first, again, other = (tokens(session.generate(PROMPTS, max_new_tokens=12, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    greedy = tokens(session.generate(PROMPTS, max_new_tokens=12, do_sample=False))
    assert first != greedy == tokens(session.generate(PROMPTS, max_new_tokens=12, temperature=0))


def test_several_sequences_are_drawn_of_each_prompt(stating: Callable[..., Session]) -> None:
    session = stating()
    result = session.generate(PROMPTS, max_new_tokens=12, temperature=3.0, num_return_sequences=3)
    assert [one.prompt_tokens for one in result.completions] == [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3
    assert len({tuple(row) for row in tokens(result)}) >= 5
    alone = session.generate(PROMPTS[1:], max_new_tokens=12, temperature=3.0, num_return_sequences=3)
    assert tokens(alone) == tokens(result)[3:]


def test_beams_are_drawn_by_their_seed(stating: Callable[..., Session]) -> None:
    session = stating()

    def drawn(prompts: list[list[int]], seed: int) -> list[list[int]]:
        options = {"num_beams": 3, "temperature": 2.0, "num_return_sequences": 2, "seed": seed}
        return tokens(session.generate(prompts, max_new_tokens=10, **options))

    batched = drawn(PROMPTS, 4)
    assert batched == drawn(PROMPTS, 4) != drawn(PROMPTS, 5)
    assert drawn(PROMPTS[1:], 4) == batched[2:], "whatever other prompts are in the batch"


def test_beams_of_a_batch_are_those_of_each_prompt_alone(stating: Callable[..., Session]) -> None:
    """Up to the model's limit, where the padding of the longer prompt is given back."""
    session = stating()
    prompts = [list(range(3, 23)), [8, 4, 11], list(range(5, 19))]
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 40, "eos_token_id": []}
    result = session.generate(prompts, **options)
    assert {one.finish for one in result.completions} == {"limit"}
    assert [len(row) for row in tokens(result)] == [34 - len(prompt) for prompt in prompts for _ in range(2)]
    alone = [session.generate([prompt], **options) for prompt in prompts]
    assert tokens(result) == [row for one in alone for row in tokens(one)]
    scores = [one.score for one in result.completions]
    agree(scores, [one.score for item in alone for one in item.completions], "another library", np.float32)
    assert all(first >= second for first, second in zip(scores[::2], scores[1::2], strict=True))


# -- conversion ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"do_sample": False, "temperature": 0.6, "use_cache": True, "pad_token_id": 0, "num_beam_groups": 1}, []),
        ({"guidance_scale": 1.5}, ["asks for guidance_scale 1.5, which is not followed: classifier-free guidance"]),
        ({"num_beam_groups": 2, "diversity_penalty": 0.5}, ["num_beam_groups 2", "diversity_penalty 0.5"]),
        ({"penalty_alpha": 0.6, "top_k": 4}, ["penalty_alpha 0.6, which is not followed: contrastive search"]),
        (
            {"chat_format": "x", "max_window_size": 9},
            ["has chat_format, max_window_size, which posexport does not know"],
        ),
        ({"top_k": "all"}, ["is unsound, so generate will refuse it: top_k must be a whole number, got 'all'"]),
        ({"lang_to_id": {"<|en|>": 5}}, ["has lang_to_id, which"]),
        ({"lang_to_id": {"<|en|>": 5}, "no_timestamps_token_id": 9, "alignment_heads": [[0, 1]]}, []),
    ],
)
def test_conversion_names_what_is_not_followed(stated: dict[str, Any], says: list[str], tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps(stated))
    actual = remarks({file.name: file})
    assert len(actual) == len(says)
    assert all(words in sentence for words, sentence in zip(says, actual, strict=True))


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"model_type": "t5", "num_beam_groups": 1, "use_cache": True, "d_model": 8}, []),
        ({"num_beam_groups": 2}, ["config.json asks for num_beam_groups 2, which is not followed"]),
        ({"top_k": "all"}, ["config.json is unsound, so generate will refuse it: top_k must be"]),
    ],
)
def test_options_of_config_json_are_named_without_the_other_file(
    stated: dict[str, Any], says: list[str], tmp_path: Path
) -> None:
    config, other = tmp_path / "config.json", tmp_path / "generation_config.json"
    config.write_text(json.dumps(stated))
    sentences = remarks({config.name: config})
    assert len(sentences) == len(says)
    assert all(sentence.startswith(words) for words, sentence in zip(says, sentences, strict=True))
    other.write_text("{}")
    assert remarks({config.name: config, other.name: other}) == []


def test_an_old_whisper_is_followed_without_timestamps(tmp_path: Path) -> None:
    stated = {"generation_config.json": {"forced_decoder_ids": [[1, 7]]}, "config.json": {"model_type": "whisper"}}
    for name, document in stated.items():
        (tmp_path / name).write_text(json.dumps(document))
    assert remarks({name: tmp_path / name for name in stated}) == []
    (actual,) = remarks({"generation_config.json": tmp_path / "generation_config.json"})
    assert "forced_decoder_ids [[1,7]], which is not followed" in actual


def test_of_a_file_made_from_config_json_only_declared_options_count(tmp_path: Path) -> None:
    """As in transformers 5.24: `GenerationConfig.__init__` sets no other attribute with ``_from_model_config``."""
    file = tmp_path / "generation_config.json"
    further = {"language": "de", "lang_to_id": {"<|de|>": 5}, "no_timestamps_token_id": 9}
    file.write_text(json.dumps({"_from_model_config": True, "num_beams": 2, **further}))
    (said,) = remarks({file.name: file})
    assert said == (
        "generation_config.json says _from_model_config, so that transformers ignores its language, lang_to_id, "
        "no_timestamps_token_id, and so does generate"
    )


@pytest.mark.parametrize(
    ("stated", "beams", "language", "forced"),
    [
        ({"_from_model_config": True, "language": "de", "num_beams": 2}, 2, None, None),
        ({"_from_model_config": False, "language": "de", "num_beams": 2}, 2, "de", None),
        ({"_from_model_config": True, "force_bos_token_to_be_generated": True, "bos_token_id": 7}, None, None, 7),
        ({"force_bos_token_to_be_generated": True, "bos_token_id": 7}, None, None, None),
    ],
)
def test_options_of_a_file_made_from_config_json(
    stating: Callable[..., Session], stated: dict[str, Any], beams: int | None, language: str | None, forced: int | None
) -> None:
    session = stating(**stated)
    options = read_stated(session.directory, session.manifest).options
    assert (options.num_beams, options.language, options.forced_bos_token_id) == (beams, language, forced)


def test_a_conversion_prints_these_remarks(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "gpt2-lmheadmodel", tmp_path / "from")
    (tmp_path / "from" / "generation_config.json").write_text(json.dumps({"watermarking_config": {"bias": 2.0}}))
    done = posexport.convert(str(tmp_path / "from"), tmp_path / "to", verify=False)
    assert [sentence for sentence in done.remarks if "watermarking_config" in sentence]


def test_options_of_config_json_count_without_the_other_file(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "old"
    shutil.copytree(bundle, target)
    (target / "generation_config.json").unlink(missing_ok=True)
    stated = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**stated, "no_repeat_ngram_size": 1, "task": "x", "language": 5}))
    seal(target, read(target))
    result = posexport.load(target, threads=1).generate(PROMPTS, max_new_tokens=8)
    assert result.followed == {"no_repeat_ngram_size": 1}
    assert all(
        len({*prompt, *row}) == len({*prompt}) + len(row) for prompt, row in zip(PROMPTS, tokens(result), strict=True)
    )


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
        ({"num_beams": 2.5}, "num_beams must be a whole number, got 2.5"),
        ({"num_beams": True}, "num_beams must be a whole number, got True"),
        (
            {"num_return_sequences": 3},
            "num_return_sequences=3 would be the same text 3 times .* give do_sample=True or",
        ),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3 is more than num_beams=2; give as many"),
        ({"length_penalty": 2.0}, "length_penalty=2.0 is about beam search, and num_beams is 1; give num_beams=2"),
        ({"early_stopping": "always", "num_beams": 2}, "early_stopping must be True, False or 'never', got 'always'"),
        ({"max_new_tokens": 4, "max_length": 9}, "max_new_tokens and max_length say the same .* give one"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens=5 is more than max_new_tokens=4; make it smaller"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be above 0 \(1: no penalty\), got 0.0"),
        ({"repetition_penalty": "1.2"}, "repetition_penalty must be a number, got '1.2'"),
        ({"do_sample": False, "min_p": 0.2}, "do_sample=False takes the likeliest token, and min_p=0.2 draws"),
        ({"do_sample": "yes"}, "do_sample must be True or False, got 'yes'"),
        ({"bad_words_ids": [5, 6]}, r"bad_words_ids must be a list of lists of token ids, got \[5, 6\]"),
        ({"bad_words_ids": [[]]}, "bad_words_ids must be lists of at least one token id"),
        ({"suppress_tokens": 5}, "suppress_tokens must be a list of token ids, got 5"),
        ({"sequence_bias": [[5, 1.0]]}, r"sequence_bias must be a list of \[token ids, bias\], such as"),
        ({"sequence_bias": [[[99], 1.0]]}, "sequence_bias holds the id 99; the model gives ids from 0 to 22"),
        ({"exponential_decay_length_penalty": [5]}, "exponential_decay_length_penalty must be two values"),
        ({"guidance_scale": 2.0}, "generate has no option guidance_scale: classifier-free guidance .*; leave it out"),
        ({"penalty_alpha": 0.6}, "generate has no option penalty_alpha: contrastive search is not supported"),
        ({"num_beam": 2}, r"no option num_beam; did you mean num_beams\? help\(posexport.GenerationConfig\) lists"),
        ({"xyz": 2}, r"^generate has no option xyz; help\(posexport.GenerationConfig\) lists the options$"),
        ({"suppress_tokens": {5}}, r"suppress_tokens must be a list of token ids, got \{5\}"),
        ({"forced_eos_token_id": 99, "max_new_tokens": 1}, "a forced token has the id 99; .* are from 0 to 22"),
        ({"language": "fr"}, "language is an option of Whisper, and this bundle is none; .* forced_bos_token_id"),
        ({"task": "write"}, "task must be transcribe or translate, got 'write'"),
    ],
)
def test_bad_options_are_one_sentence(bundle: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        posexport.load(bundle, threads=1).generate(PROMPTS, **options)


def test_arrays_are_lists_of_ids(bundle: Path) -> None:
    session = posexport.load(bundle, threads=1)
    ids = {"suppress_tokens": [3, 4], "bad_words_ids": [[5, 6]], "eos_token_id": [2]}
    arrays = {name: np.array(value) for name, value in ids.items()}
    asked = [session.generate(PROMPTS, max_new_tokens=4, **options).completions for options in (ids, arrays)]
    assert asked[0] == asked[1]


def test_an_end_token_outside_the_vocabulary_never_occurs(bundle: Path) -> None:
    options = {"eos_token_id": 99, "exponential_decay_length_penalty": [1, 2.0], "max_new_tokens": 4}
    completions = posexport.load(bundle, threads=1).generate(PROMPTS, **options).completions
    assert [completion.finish for completion in completions] == ["length"] * len(PROMPTS)


def test_beams_are_not_streamed(stating: Callable[..., Session]) -> None:
    session = stating(num_beams=3)
    with pytest.raises(PosexportError, match="3 beams cannot be streamed; give num_beams=1"):
        list(session.stream(PROMPTS[0]))


def test_an_unsound_file_is_named(stating: Callable[..., Session]) -> None:
    session = stating(num_beams=0)
    with pytest.raises(
        PosexportError, match=r"cannot use .*generation_config.json: num_beams must be at least 1, got 0"
    ):
        session.generate(PROMPTS)


# -- the command -----------------------------------------------------------------------------------


def test_the_command_line_has_every_option(tmp_path: Path) -> None:
    sizes = ["--set", "layers=1", "--set", "hidden=20", "--set", "heads=5", "--set", "vocab=61", "--set", "tied=false"]
    (tmp_path / "corpus.txt").write_text("low lower newest widest the cat sat on the mat " * 3)
    run = CliRunner().invoke
    trained = ["tokenizer", "train", str(tmp_path / "corpus.txt"), "-o", str(tmp_path / "t.json"), "--vocab-size", "61"]
    assert run(group, trained).exit_code == 0
    result = ["convert", "decoder-rope", "-o", str(tmp_path / "b"), *sizes, "--no-verify", "--threads", "1"]
    assert run(group, [*result, "--tokenizer", str(tmp_path / "t.json")]).exit_code == 0
    stated = {"num_beams": 3, "repetition_penalty": 1.3, "eos_token_id": 60}
    (tmp_path / "b" / "generation_config.json").write_text(json.dumps(stated))
    seal(tmp_path / "b", read(tmp_path / "b"))
    session = posexport.load(tmp_path / "b", threads=1)
    arguments = ["generate", str(tmp_path / "b"), "--prompt", "the cat", "--max-new-tokens", "9", "--threads", "1"]
    done = run(group, arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{session.generate(['the cat'], max_new_tokens=9).completions[0].text}\n"
    assert done.stderr.startswith("as generation_config.json says: num_beams 3, repetition_penalty 1.3\n")
    done = run(group, [*arguments, "--greedy", "--repetition-penalty", "1"])
    expected = session.generate(["the cat"], max_new_tokens=9, num_beams=1, repetition_penalty=1.0)
    assert done.stdout == f"{expected.completions[0].text}\n"
    assert "generation_config" not in done.stderr
    words = ["--num-return-sequences", "2", "--early-stopping", "true", "--bad-words-ids", "[[5], [6, 7]]"]
    words += ["--suppress-tokens", "9", "--suppress-tokens", "8", "--length-penalty", "0.5", "--json"]
    done = run(group, [*arguments, *words])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    options = {"num_return_sequences": 2, "early_stopping": True, "bad_words_ids": [[5], [6, 7]]}
    options |= {"suppress_tokens": [9, 8], "length_penalty": 0.5}
    expected = session.generate(["the cat"], max_new_tokens=9, **options)
    assert [(one["tokens"], one["score"]) for one in document["completions"]] == [
        (one.tokens, one.score) for one in expected.completions
    ]
    assert document["followed"] == {"num_beams": 3, "repetition_penalty": 1.3}
    for bad, says in [
        (["--greedy", "--do-sample"], "--greedy takes one likeliest token after the other"),
        (["--bad-words-ids", "[[5"], "is no JSON"),
        (["--stream"], "beam search knows its text at the end, so 3 beams cannot be streamed; give --num-beams 1"),
    ]:
        done = run(group, [*arguments, *bad])
        assert done.exit_code != 0
        assert says in done.output + str(done.exception)


# -- rows ------------------------------------------------------------------------------------------


def test_rows_of_ids_grow_and_are_gathered() -> None:
    rows = TokenRows([[5, 6, 7], [8]], [6, 9])
    assert rows.ids_BS.tolist() == [[5, 6, 7], [NONE, NONE, 8]]
    rows.append([1, 2])
    rows.take([1, 1, 0])
    rows.append([3, 4, 9])
    assert rows.ids_BS.tolist() == [[NONE, NONE, 8, 2, 3], [NONE, NONE, 8, 2, 4], [5, 6, 7, 1, 9]]
    assert rows.new_BN.tolist() == [[2, 3], [2, 4], [1, 9]]
    assert (rows.lengths_B.tolist(), rows.most_B.tolist(), rows.prompt_B.tolist()) == ([3, 3, 5], [9, 9, 6], [1, 1, 0])


@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (3, 7), (2, 3, 4)])
def test_rows_are_gathered_where_they_are(shape: tuple[int, ...]) -> None:
    from onnxruntime import OrtValue

    array, axis = np.random.default_rng(0).standard_normal(shape).astype(np.float32), shape.index(3)
    index = np.array([2, 0, 0, 1])
    gathered = GatherRows("cpu", "float", axis)(OrtValue.ortvalue_from_numpy(array), index, "cpu")
    np.testing.assert_array_equal(gathered.numpy(), np.take(array, index, axis))


@pytest.mark.all
def test_a_shared_encoder_is_gathered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams of one prompt have the same keys and values of the encoder."""
    posexport.convert(str(GOLDEN / "t5-forconditionalgeneration"), tmp_path / "t5", verify=False, precision="fp32")
    session = posexport.load(tmp_path / "t5", threads=1)
    gathered: list[int] = []
    original = Cache._gathered

    def noted(self: Cache, value: Any, index: Any, axis: int) -> Any:
        gathered.append(len(value.shape()) and int(any(value is item for item in self._fixed.values())))
        return original(self, value, index, axis)

    monkeypatch.setattr(Cache, "_gathered", noted)
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 8, "eos_token_id": []}
    result = session.generate([*PROMPTS], **options)
    assert len({tuple(one.tokens) for one in result.completions}) == 2
    fixed, per_step = sum(gathered), len(gathered) - sum(gathered)
    assert 0 < fixed < per_step
    layers = len(session._chain.links[-1].inputs)
    assert fixed <= layers, "for all steps together"


# -- Whisper ---------------------------------------------------------------------------------------

LANGUAGES = {"<|en|>": 6, "<|fr|>": 7, "<|zh|>": 8}
TASKS = {"transcribe": 9, "translate": 10}
TOKENS = WhisperTokens(lang_to_id=LANGUAGES, task_to_id=TASKS, no_timestamps_token_id=13, is_multilingual=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[3, 7, 13], [3, 7, 13]]),
        ({"language": "French"}, [[3, 7, 9, 13]] * 2),
        ({"language": ["mandarin", "<|en|>"], "task": "translate"}, [[3, 8, 10, 13], [3, 6, 10, 13]]),
        ({"task": "transcribe", "return_timestamps": True}, [[3, 7, 9]] * 2),
    ],
)
def test_whisper_begins_with_language_and_task(options: dict[str, Any], expected: list[list[int]]) -> None:
    assert begin(TOKENS, 3, GenerationConfig(**options), 2, lambda languages: [languages[1]] * 2) == expected


def test_forced_ids_begin_where_nothing_is_asked() -> None:
    forced = msgspec.structs.replace(TOKENS, forced_decoder_ids=[(1, None), (2, 9)])
    assert begin(forced, 3, GenerationConfig(), 1, lambda _: [6]) == [[3, 6, 9, 13]]
    assert begin(forced, 3, GenerationConfig(language="fr"), 1, lambda _: [6]) == [[3, 7, 9, 13]]
    apart = msgspec.structs.replace(TOKENS, forced_decoder_ids=[(1, 7), (3, 9)])
    with pytest.raises(PosexportError, match=r"forced_decoder_ids .* are at \[1, 3\]; they must be at 1, 2, 3"):
        begin(apart, 3, GenerationConfig(), 1, lambda _: [6])


@pytest.mark.parametrize(
    ("tokens_of", "options", "says"),
    [
        (TOKENS, {"language": "klingon"}, "this Whisper has no language 'klingon'; it knows en, fr, zh"),
        (TOKENS, {"language": "german"}, "this Whisper has no language 'german'"),
        (TOKENS, {"language": ["fr", "en", "fr"]}, "got 3 languages and 2 sounds"),
        (WhisperTokens(is_multilingual=False), {"language": "en"}, "knows English alone, so it takes no language"),
        (WhisperTokens(), {"task": "translate"}, "has no task_to_id, so task cannot be named; give decoder_prompts"),
        (
            msgspec.structs.replace(TOKENS, task_to_id={"transcribe": 9}),
            {"task": "translate"},
            "has no translate; leave task out",
        ),
        (WhisperTokens(), {"return_timestamps": True}, "has no no_timestamps_token_id, so there are no timestamps"),
    ],
)
def test_what_whisper_cannot_do_is_a_sentence(tokens_of: WhisperTokens, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PosexportError, match=says):
        begin(tokens_of, 3, GenerationConfig(**options), 2, lambda _: [6, 6])


def test_languages_have_names_and_codes() -> None:
    assert [language_token(TOKENS, name) for name in ("en", "English", "<|zh|>", "chinese", "Mandarin")] == [
        6,
        6,
        8,
        8,
        8,
    ]


def test_max_length_of_whisper_counts_behind_the_prompt() -> None:
    tokens_of = msgspec.structs.replace(TOKENS, max_target_positions=34)
    assert with_room(tokens_of, GenerationConfig(max_length=20), [[1, 2, 3]]).max_length == 23
    assert with_room(tokens_of, GenerationConfig(max_length=33), [[1, 2, 3]]).max_length == 34
    assert with_room(tokens_of, GenerationConfig(max_new_tokens=4), [[1, 2, 3]]).max_length is None


@pytest.mark.parametrize(
    ("ids", "expected", "following"),
    [
        ([50, 7, 8, 60, 60, 9, 75], [(0.0, 0.2), (0.2, 0.5)], 100),  # nothing is said behind the last timestamp
        ([50, 7, 60, 60, 9, 70, 70], [(0.0, 0.2), (0.2, 0.4)], 40),  # the next window begins at the last pair
        ([50, 7, 60, 60, 9], [(0.0, 0.2)], 20),  # a segment without an end is read again
        ([7, 8], [(0.0, 1.0)], 100),
        ([50, 7, 60], [(0.0, 0.2)], 100),
    ],
)
def test_timestamps_cut_a_window_into_segments(
    ids: list[int], expected: list[tuple[float, float]], following: int
) -> None:
    actual, step = segments(ids, 50, frames=100)
    agree([(item.start, item.end) for item in actual], expected, "rounded", np.float64)
    assert step == following
    shifted, _ = segments(ids, 50, frames=100, offset=30.0)
    agree([item.start for item in shifted], [30 + start for start, _ in expected], "rounded", np.float64)
