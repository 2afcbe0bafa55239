"""Grammars, a kept KV cache and draft models in onnxruntime-genai: genai_engine.py < JOBS > ANSWERS

``tests/serve/test_genai.py`` runs it and says what the tokens must be.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

Guidance = tuple[str, str]


def generator(
    model: og.Model, max_length: int, guidance: Guidance | None = None, speculation: dict[str, Any] | None = None
) -> og.Generator:
    """Greedy decoding, by a grammar and with drafted tokens if they are given."""
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=max_length, do_sample=False)
    if guidance is not None:
        params.set_guidance(*guidance)  # ("json_schema", schema), ("regex", pattern) or ("lark_grammar", grammar)
    if speculation is not None:
        params.set_speculative_options(**speculation)
    return og.Generator(model, params)


def append(generator: og.Generator, turn: list[int]) -> None:
    """Another turn after an answer. The answer's last token has not been run, unless an end token followed it."""
    tokens = [int(token) for token in generator.get_sequence(0)]
    generator.rewind_to(len(tokens) - 2)
    generator.append_tokens(np.array(tokens[-2:] + turn, dtype=np.int32))


def with_draft(target: str, draft: str, to: str) -> None:
    """Write a folder of both bundles, in which ``draft`` proposes tokens and ``target`` decides."""
    shutil.copytree(target, to)
    shutil.copytree(draft, f"{to}/draft")
    config = json.loads(Path(target, "genai_config.json").read_text())
    decoder = json.loads(Path(draft, "genai_config.json").read_text())["model"]["decoder"]
    config["model"]["draft"] = {**decoder, "filename": "draft/model.onnx"}
    Path(to, "genai_config.json").write_text(json.dumps(config))


def answer(directory: str, calls: list[dict[str, Any]], guidance: Guidance | None, **given: Any) -> dict[str, Any]:
    """The sequence after ``calls``: ``keep`` (of the tokens; -1: all, in a further turn), ``tokens``, ``new``."""
    going, computed = generator(og.Model(directory), 400, guidance, **given), []
    for call in calls:
        if call["keep"] < 0:
            append(going, call["tokens"])
        else:
            if call["keep"]:
                going.rewind_to(call["keep"])
            going.append_tokens(np.array(call["tokens"], dtype=np.int32))
        computed.append(going.get_input("input_ids").shape[1])
        for _ in range(call["new"]):
            if going.is_done():
                break
            going.generate_next_token()
    tokens = [int(token) for token in going.get_sequence(0)]
    return {"tokens": tokens, "computed": computed, "stats": going.get_speculative_stats()}


def main() -> None:
    """Answer jobs."""
    answers = []
    for job in json.load(sys.stdin):
        if "draft" in job:
            with_draft(job["directory"], job.pop("draft"), job["to"])
            job["directory"] = job.pop("to")
        answers.append(answer(**job))
    json.dump(answers, sys.stdout)


main()
