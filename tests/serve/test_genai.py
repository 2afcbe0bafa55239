"""onnxruntime-genai runs bundles of ``--layout genai``, with the tokens of ``posexport generate``.

It needs an environment of its own (it brings another ONNX Runtime), which ``ci/lab/rivals/setup`` makes.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posexport.checkpoints.checkpoint import checkpoint_source
from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.run.load import load
from posexport.serve.layouts.genai import FILE, config, model_type
from posexport.sources.prepare import with_kv_cache
from tests import docs_models
from tests.checkpoints.test_virtual_tokens import COUNT, tuned

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
NEW = 32
LENGTH = 7
#: runs in that environment: directories and prompts from stdin, tokens to stdout
SCRIPT = """
import json, sys
import numpy as np
import onnxruntime_genai as og
found = []
for directory, prompts, new in json.load(sys.stdin):
    model = og.Model(directory)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompts[0]) + new, batch_size=len(prompts), do_sample=False)
    generator = og.Generator(model, params)
    ids = np.array(prompts, dtype=np.int32)
    generator.append_tokens(ids if len(prompts) > 1 else ids[0])
    while not generator.is_done():
        generator.generate_next_token()
    found.append([[int(t) for t in generator.get_sequence(row)][len(prompts[0]):] for row in range(len(prompts))])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def genai() -> Path:
    """The environment's Python."""
    subprocess.run(
        [ROOT / "ci" / "lab" / "rivals" / "setup", "genai-run"],
        check=True,
        capture_output=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
    )
    return ROOT / ".cache" / "rivals" / "genai-run" / "bin" / "python"


def changed(name: str, to: Path, **changes: Any) -> Path:
    """A golden checkpoint with another configuration."""
    shutil.copytree(GOLDEN / name, to)
    given = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**given, **changes}))
    return to


@pytest.mark.all  # installs an environment
@pytest.mark.parametrize(
    ("name", "changes", "kind"),
    [
        ("llama-forcausallm", {}, "llama"),
        ("phi3-forcausallm", {"original_max_position_embeddings": 4096}, "phi3"),
        ("gpt2-lmheadmodel", {}, "llama"),
        ("bloom-forcausallm", {}, "llama"),
    ],
)
def test_it_generates_the_tokens_of_posexport(
    name: str, changes: dict[str, Any], kind: str, genai: Path, tmp_path: Path
) -> None:
    checkpoint = changed(name, tmp_path / "checkpoint", **changes)
    jobs: list[tuple[str, list[list[int]], int]] = []
    wanted: list[list[list[int]]] = []
    for cache in ("dynamic", "static"):
        target = tmp_path / cache
        options = ConvertOptions(layout="genai", cache=cache, verify=False)  # type: ignore[arg-type]
        assert convert(str(checkpoint), target, options).good
        config = json.loads((target / FILE).read_text())
        # what the proof's sessions set reaches genai's
        needed = json.loads((target / "posexport.json").read_text())["session_options"]
        assert config["model"]["decoder"]["session_options"].items() >= needed.items()
        assert config["model"]["type"] == kind
        assert config["search"]["past_present_share_buffer"] == (cache == "static")
        session = load(target)
        new = min(NEW, (session.manifest.limits.max_length or 10**6) - LENGTH)
        vocab = session.inputs[0].size
        assert vocab is not None
        for batch in (1, 3):
            prompts = np.random.default_rng(batch).integers(1, vocab, (batch, LENGTH)).tolist()
            made = session.generate(prompts, max_new_tokens=new, eos_token_id=[])
            wanted.append([one.tokens for one in made.completions])
            jobs.append((str(target), prompts, new))
    made_at_all = {token for rows in wanted for row in rows for token in row}
    assert len(made_at_all) > 4
    for target, _, _ in jobs:
        # it always has an end token: one that ends nothing here
        end(Path(target), next(token for token in range(vocab) if token not in made_at_all))
    done = subprocess.run([genai, "-c", SCRIPT], input=json.dumps(jobs), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == wanted


def end(target: Path, token: int) -> None:
    config = json.loads((target / FILE).read_text())
    config["model"]["eos_token_id"] = token
    (target / FILE).write_text(json.dumps(config))


#: ids of a prompt, of a second turn and of another question after the first five tokens
PROMPT, TURN, OTHER = [74, 71, 78, 78, 81, 223, 89, 81, 84], [20, 31, 45, 7], [9, 88, 70]
#: a token that the model does not generate after them
NEVER = 299


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer, and its bundles with either cache, in float32 and int4 (of either precision)."""
    folder = tmp_path_factory.mktemp("bundles")
    docs_models.checkpoint("SmolLM2", folder / "checkpoint")
    (folder / "checkpoint" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    for cache in ("dynamic", "static"):
        for precision in ("fp32", "int4"):
            target = folder / f"{cache}-{precision}"
            options = ConvertOptions(layout="genai", cache=cache, precision=precision, verify=False)  # type: ignore[arg-type]
            convert(str(folder / "checkpoint"), target, options)
            end(target, NEVER)
    return folder


def engine(genai: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``ci/lab/clients/genai_engine.py`` answers."""
    program = ROOT / "ci" / "lab" / "clients" / "genai_engine.py"
    done = subprocess.run(
        [genai, program], input=json.dumps(jobs), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def call(tokens: list[int], new: int, keep: int = 0) -> dict[str, Any]:
    return {"keep": keep, "tokens": tokens, "new": new}


def job(directory: Path, *calls: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {"directory": str(directory), "calls": calls, "guidance": None, **given}


def greedy(bundles: Path, ids: list[int], new: int, allowed: Callable[[list[int]], list[int]] | None = None) -> Any:
    """``ids`` and the tokens with the largest logits of the definition in float64, of those that are ``allowed``."""
    module = checkpoint_source(bundles / "checkpoint", task=None, allow_pickle=False).module.double()
    for _ in range(new):
        logits = module(input_ids=torch.tensor([ids]))[0][0, -1]
        choice = range(len(logits)) if allowed is None else allowed(ids)
        ids = [*ids, max(choice, key=lambda token: float(logits[token]))]
    return ids


@pytest.mark.all
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_grammars_choose_among_the_logits(cache: str, genai: Path, bundles: Path) -> None:
    directory = bundles / f"{cache}-fp32"
    tokenizer = docs_models.tokenizer()
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ann", "Bo"]}, "age": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
    grammars = [
        ("regex", "[ab]{3}-[0-9]{4}"),
        ("json_schema", json.dumps(schema)),
        ("lark_grammar", 'start: "yes" | "no" " sir"'),
    ]
    jobs = [job(directory, call(PROMPT, 60), guidance=grammar) for grammar in grammars]
    sequences = [found["tokens"] for found in engine(genai, jobs)]
    texts = [tokenizer.decode(sequence[len(PROMPT) :]) for sequence in sequences]

    # of the pattern, what may follow is known
    def allowed(ids: list[int]) -> list[int]:
        letters = ("ab", "ab", "ab", "-", *["0123456789"] * 4)[len(ids) - len(PROMPT)]
        return [tokenizer.encode(letter).ids[0] for letter in letters]

    assert sequences[0] == greedy(bundles, PROMPT, 8, allowed)
    person = json.loads(texts[1])
    assert person["name"] in ("Ann", "Bo")
    assert 10 <= person["age"] <= 99
    assert texts[2] in ("yes", "no sir")
    assert sequences[0][: len(PROMPT) + 1] != greedy(bundles, PROMPT, 1)


@pytest.mark.all
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_cache_is_kept_between_turns_and_prompts(cache: str, genai: Path, bundles: Path) -> None:
    directory = bundles / f"{cache}-fp32"
    first = greedy(bundles, PROMPT, 7)
    turn = greedy(bundles, first + TURN, 9)
    other = greedy(bundles, PROMPT[:5] + OTHER, 9)
    stop = greedy(bundles, first, 1)[-1]
    assert stop not in first
    calls = (call(PROMPT, 7), call(TURN, 9, keep=-1))
    cut, again = engine(genai, [job(directory, *calls), job(directory, *calls, call(OTHER, 9, keep=5))])
    assert cut["tokens"] == turn
    assert again["tokens"] == other
    # the tokens of the turn and two before them, those after the common start
    assert again["computed"] == [len(PROMPT), len(TURN) + 2, len(OTHER)]
    # an answer that an end token ended
    ended = shutil.copytree(directory, bundles / f"{cache}-ended")
    end(ended, stop)
    (found,) = engine(genai, [job(ended, call(PROMPT, 60), call(TURN, 1, keep=-1))])
    assert found["tokens"] == turn[: len(first) + len(TURN) + 1]


@pytest.mark.all
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_drafted_tokens_are_those_of_the_model_alone(cache: str, genai: Path, bundles: Path, tmp_path: Path) -> None:
    expected = greedy(bundles, PROMPT, 40)
    target, draft = bundles / f"{cache}-fp32", bundles / f"{cache}-int4"
    both = {"draft": str(draft), "to": str(tmp_path / "both"), "speculation": {"max_draft_tokens": 4}}
    repeated = {"speculation": {"ngram_size": 2, "max_draft_tokens": 4}}
    calls = (call(PROMPT, 40),)
    jobs = [job(draft, *calls), job(target, *calls, **both), job(target, *calls, **repeated)]
    alone, drafted, looked_up = engine(genai, jobs)
    assert alone["tokens"] != expected
    assert drafted["tokens"] == looked_up["tokens"] == expected
    stats = drafted["stats"]
    assert 0 < stats["draft_tokens_accepted"] < stats["draft_tokens_evaluated"]
    # one call of the target verifies several tokens
    assert stats["target_forward_passes"] < 20
    assert looked_up["stats"]["ngram_lookup_hits"] > 0


def test_virtual_tokens_take_places_of_the_context(tmp_path: Path) -> None:
    base = changed("llama-forcausallm", tmp_path / "base", max_position_embeddings=64)
    folder, _ = tuned(tmp_path / "tuned", "llama-forcausallm", "PROMPT_TUNING", 20, base_model_name_or_path=str(base))
    for given, length in ((base, 64), (folder, 64 - COUNT)):
        source = checkpoint_source(given, task=None, allow_pickle=False)
        stated = config(with_kv_cache(source, "dynamic", "at-write"), {})
        assert stated["model"]["context_length"] == stated["search"]["max_length"] == length


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "qwen3"}, "qwen3"),
        ({"model_type": "gpt2"}, "llama"),
        ({"model_type": "gptj"}, "llama"),
        ({}, "llama"),
        ({"model_type": "phi3", "original_max_position_embeddings": 4096}, "phi3"),
        ({"model_type": "phi3", "original_max_position_embeddings": 2048}, "llama"),
        ({"model_type": "phi3", "rope_parameters": {"original_max_position_embeddings": 4096}}, "phi3"),
    ],
)
def test_the_type_is_one_that_means_the_same(config: dict[str, Any], kind: str) -> None:
    assert model_type(config) == kind


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PosexportError, match=r"--layout genai is for decoders that generate text; encoder-nope is for"):
        convert("encoder-nope", tmp_path / "x", ConvertOptions(layout="genai", verify=False))
    assert not (tmp_path / "x").exists()
