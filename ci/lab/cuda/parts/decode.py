"""Milliseconds of a prefill and of a decode step of a Llama checkpoint, beside transformers: eager, and compiled.

The rivals generate with transformers' `generate`, in float16: with its dynamic cache and scaled_dot_product_attention,
and with its static cache, whose steps it compiles.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from part import Part, Row, Setup

#: 275 million weights, as the tables of docs/performance.md on the CPU
SETTINGS = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LITTLE = {**SETTINGS, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
#: tokens of the prompt; steps behind it
PROMPT, STEPS, RUNS = 512, 64, 5


@dataclasses.dataclass(frozen=True)
class Way:
    """How a model generates; ``precision`` and ``cache`` of a conversion, or transformers' class of cache."""

    precision: str
    cache: str
    ours: bool = True


WAYS = {
    "posexport fp16": Way("fp16", "dynamic"),
    "posexport fp16 static cache": Way("fp16", "static"),
    "posexport int4-fp16": Way("int4-fp16", "dynamic"),
    "posexport int4-fp16 static cache": Way("int4-fp16", "static"),
    "transformers fp16": Way("fp16", "dynamic", ours=False),
    "transformers fp16 static cache, compiled": Way("fp16", "static", ours=False),
}


def cases(setup: Setup) -> list[str]:
    """One and eight rows."""
    return setup.few(["1 row", "8 rows"], "1 row")


def run(name: str, setup: Setup) -> Row:
    """Every way in one process, in turn."""
    rows, failed = int(name.split()[0]), {}
    settings = LITTLE if setup.rehearsal else SETTINGS
    prompt, steps = (17, 5) if setup.rehearsal else (PROMPT, STEPS)
    prompts = np.random.default_rng(0).integers(5, settings["vocab_size"], (rows, prompt)).tolist()
    ready: dict[str, Callable[[int], Any]] = {}
    with TemporaryDirectory(prefix="posexport-gpu-") as folder:
        make(Path(folder, "llama"), settings)
        for each, way in WAYS.items():
            try:
                opener = ours if way.ours else transformers_way
                ready[each] = functools.partial(opener(Path(folder), way, setup), prompts)
                for count in (1, steps + 1, steps + 1):
                    ready[each](count)
            except Exception as err:  # noqa: BLE001  # a way that does not work is a finding
                failed[each] = " ".join(f"{type(err).__name__}: {err}".split())[:300]
                ready.pop(each, None)
        times: dict[str, tuple[list[float], list[float]]] = {each: ([], []) for each in ready}
        for _ in range(2 if setup.rehearsal else RUNS):
            for each, call in ready.items():
                first, whole = seconds(call, 1), seconds(call, steps + 1)
                times[each][0].append(1e3 * first)
                times[each][1].append(1e3 * (whole - first) / steps)
    ms = {each: [round(statistics.median(taken), 3) for taken in both] for each, both in times.items()}
    lost = [f"{each}: {why}" for each, why in failed.items() if each.startswith("posexport")]
    return {"passed": not lost, "note": "; ".join(lost), "ms: prefill, step": ms, "failed": failed}


def make(target: Path, settings: dict[str, int]) -> None:
    """A checkpoint with random weights."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).half().save_pretrained(target)


def ours(folder: Path, way: Way, setup: Setup) -> Callable[[Any, int], Any]:
    """A session's `generate`, greedy, without an end."""
    import posexport

    bundle = folder / f"{way.precision}-{way.cache}"
    posexport.convert(
        str(folder / "llama"),
        bundle,
        target=setup.target(way.precision),
        precision=way.precision,
        cache=way.cache,
        verify=False,
    )
    session = posexport.load(bundle, provider=setup.provider)
    return lambda prompts, count: session.generate(prompts, max_new_tokens=count, eos_token_id=[])


def transformers_way(folder: Path, way: Way, setup: Setup) -> Callable[[Any, int], Any]:
    """transformers' own, greedy, without an end."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(folder / "llama", dtype=torch.float16)
    model = model.to(setup.torch_device).eval()
    model.generation_config.eos_token_id = None
    options: dict[str, Any] = {"cache_implementation": "static"} if way.cache == "static" else {}

    def call(prompts: Any, count: int) -> Any:
        ids = torch.tensor(prompts, device=setup.torch_device)
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0, **options
        ).cpu()

    return call


def seconds(call: Callable[[int], Any], count: int) -> float:
    """Of one call."""
    begin = time.perf_counter()
    call(count)
    return time.perf_counter() - begin


PART = Part("decode", "milliseconds of prefill and step, beside transformers", cases, run, alone=True, limit=240)
