"""onnxruntime-genai runs bundles of ``--layout genai``, with the tokens of ``posexport generate``.

It needs an environment of its own (it brings another ONNX Runtime), which ``ci/lab/rivals/setup`` makes.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posexport.conversion.convert import convert
from posexport.conversion.options import ConvertOptions
from posexport.errors import PosexportError
from posexport.run.load import load
from posexport.serve.layouts.genai import FILE, model_type

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
