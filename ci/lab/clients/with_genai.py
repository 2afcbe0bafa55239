"""onnxruntime-genai with a bundle of --layout genai --cache static: with_genai.py JOB ANSWER"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime_genai as og


def generate(model: og.Model, prompt: list[int], max_new_tokens: int) -> tuple[list[int], list[float]]:
    """Greedy decoding, and the logits after the prompt."""
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt) + max_new_tokens, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(prompt, dtype=np.int32))
    logits = np.asarray(generator.get_logits()).reshape(-1).tolist()
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)][len(prompt) :], logits


def main() -> None:
    """Answer a job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    model = og.Model(job["decoder_genai"])
    rollouts = [generate(model, prompt, job["new_tokens"]) for prompt in job["prompts"]]
    answer = {
        "tokens": [tokens for tokens, _ in rollouts],
        "logits": [logits for _, logits in rollouts],
        "versions": {name: version(name) for name in ("onnxruntime-genai", "onnxruntime")},
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


main()
