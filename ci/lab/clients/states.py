"""Converts tiny checkpoints with states, and compares the tokens of two clients with transformers' forward.

``states.py [TYPE ...]``, by a Python that has transformers 5. The tokens of a type are greedy, by transformers' forward
without a cache; a client has them for each prompt alone and, if it takes padding, for all together. Exit code 1: a
client has others.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import posexport
from ci.through import tiny
from posexport.errors import PosexportError

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results" / "clients_states.json"
GROUP = "states"
#: lengths of the prompts
LENGTHS = (7, 3, 12)
NEW_TOKENS = 20
CLIENTS = {"@huggingface/transformers": "transformers.js", "onnxruntime-genai": "genai"}


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """Each token from a forward over all tokens before it, without a cache."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            ids = torch.cat((ids, logits[:, -1:].argmax(-1)), 1)
    tokens: list[int] = ids[0, len(prompt) :].tolist()
    return tokens


def answer(layout: str, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """A client's tokens; ``error`` where it fails."""
    job_file, answer_file = folder / "job.json", folder / "answer.json"
    job_file.write_text(json.dumps(job))
    if layout == "genai":
        program = [os.environ["GENAI_PYTHON"], HERE / "with_genai.py"]
    else:
        copy = Path(os.environ["NODE_FOLDER"], "states.mjs")  # modules are looked up in the program's folder
        if copy.parent.resolve() != HERE:
            shutil.copy(HERE / "states.mjs", copy)
        program = ["node", copy]
    done = subprocess.run([*program, job_file, answer_file], capture_output=True, text=True, check=False)
    results: dict[str, Any] = (
        {"error": done.stderr.strip()[-400:]} if done.returncode else json.loads(answer_file.read_text())
    )
    return results


def of_type(kind: str, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """What each layout gave, ``equal``, ``differs`` or a refusal, and versions."""
    source = folder / kind
    tiny.make(source, tiny.table()[kind])
    model = getattr(transformers, tiny.table()[kind]["class"]).from_pretrained(source).eval()
    prompts = [
        np.random.default_rng(length).integers(1, model.config.vocab_size, length).tolist() for length in LENGTHS
    ]
    expected = [greedy(model, prompt) for prompt in prompts]
    results, versions = dict[str, str](), dict[str, str]()
    for layout in CLIENTS.values():
        bundle = folder / layout / kind
        try:
            posexport.convert(source, bundle, layout=layout, verify=False)
        except PosexportError as err:
            results[layout] = f"refused: {str(err).replace(str(source), kind)}"
            continue
        if layout == "genai":  # it always ends at a token: one that is not generated here
            path = bundle / "genai_config.json"
            config = json.loads(path.read_text())
            generated = {token for row in expected for token in row}
            config["model"]["eos_token_id"] = min(set(range(model.config.vocab_size)) - generated)
            path.write_text(json.dumps(config))
        job = {"bundle": str(bundle), "decoder_genai": str(bundle), "prompts": prompts, "new_tokens": NEW_TOKENS}
        got = answer(layout, folder, job)
        tokens = [got.get("tokens"), got.get("together", expected)]
        results[layout] = got.get("error") or ("equal" if tokens == [expected, expected] else "differs")
        versions |= got.get("versions", {})
    return results, versions


def main(kinds: list[str]) -> int:
    transformers.logging.set_verbosity_error()
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"versions": {}, "types": {}}
    types, versions = old["types"], old["versions"]
    table = tiny.table()
    for kind in kinds or [name for name in tiny.groups()[GROUP] if "refused" not in table[name]]:
        with tempfile.TemporaryDirectory() as temporary:
            types[kind], used = of_type(kind, Path(temporary))
        versions |= used | {"transformers": transformers.__version__}
        print(json.dumps({kind: types[kind]}), flush=True)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        document = {"date": today, "versions": versions, "types": dict(sorted(types.items()))}
        RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    said = [word for results in types.values() for word in results.values()]
    return 0 if all(word == "equal" or word.startswith("refused") for word in said) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
