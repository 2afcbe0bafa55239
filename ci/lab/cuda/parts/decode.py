"""Milliseconds of a prefill and of a decode step of a Llama checkpoint, beside transformers: eager, and compiled.

Both rivals compute in float16 with scaled_dot_product_attention: transformers' `generate` with its dynamic cache, and a
loop over the compiled model with its static cache.
"""

import dataclasses
import functools
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from part import Part, Row, Setup

#: prompts and how many tokens to generate
Call = Callable[[Any, int], Any]

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
PROMPT, STEPS, RUNS = 512, 64, 3


@dataclasses.dataclass(frozen=True)
class Way:
    """How a model generates; ``precision`` and ``cache`` of a conversion, or transformers' class of cache.

    ``lowering``: of attention; ``captures``: steps are CUDA graphs, which need one without a branch.
    """

    precision: str
    cache: str
    ours: bool = True
    lowering: str = "auto"
    captures: bool = False


WAYS = {
    "posexport fp16": Way("fp16", "dynamic"),
    "posexport fp16 static cache": Way("fp16", "static"),
    "posexport int4-fp16": Way("int4-fp16", "dynamic"),
    "posexport int4-fp16 static cache": Way("int4-fp16", "static"),
    "posexport fp16 filled-slots": Way("fp16", "static", lowering="filled-slots"),
    "posexport fp16 filled-slots, captured": Way("fp16", "static", lowering="filled-slots", captures=True),
    "posexport int4-fp16 filled-slots": Way("int4-fp16", "static", lowering="filled-slots"),
    "posexport int4-fp16 filled-slots, captured": Way("int4-fp16", "static", lowering="filled-slots", captures=True),
    "transformers fp16": Way("fp16", "dynamic", ours=False),
    "transformers fp16 static cache, compiled": Way("fp16", "static", ours=False),
}
#: the same graph with and without capture
SAME = [way for way in WAYS.values() if (way.lowering, way.precision) == ("filled-slots", "fp16")]


def cases(setup: Setup) -> list[str]:
    """One and eight rows."""
    return setup.few(["1 row", "8 rows"], "1 row")


def run(name: str, setup: Setup) -> Row:
    """Every way in one process, in turn."""
    rows = int(name.split()[0])
    settings, steps = (LITTLE, 5) if setup.rehearsal else (SETTINGS, STEPS)
    prompts = np.random.default_rng(0).integers(5, settings["vocab_size"], (rows, PROMPT)).tolist()
    folder = bundles(setup)
    convert_all(folder, setup)
    ready, failed = {}, {}
    for each in WAYS:
        try:
            ready[each] = functools.partial(opened(each, setup), prompts)
            for count in (1, steps + 1):
                ready[each](count)
        except Exception as err:  # noqa: BLE001  # a way that does not work is a finding
            failed[each] = " ".join(f"{type(err).__name__}: {err}".split())[:300]
            ready.pop(each, None)
    if "DECODE_BUNDLES" not in os.environ:
        shutil.rmtree(bundles(setup), ignore_errors=True)  # all are open, and the process ends without an exit handler
    times: dict[str, tuple[list[float], list[float]]] = {each: ([], []) for each in ready}
    for _ in range(RUNS):
        for each, call in ready.items():
            first, whole = seconds(call, 1), seconds(call, steps + 1)
            times[each][0].append(1e3 * first)
            times[each][1].append(1e3 * (whole - first) / steps)
    ms = {each: [round(statistics.median(taken), 3) for taken in both] for each, both in times.items()}
    lost = [f"{each}: {why}" for each, why in failed.items() if each.startswith("posexport")]
    captured = [ready[each] for each in ready if WAYS[each] in SAME]
    first, *others = [call(steps + 1).completions for call in captured] or [None]
    lost += ["captured steps give other tokens"] if any(answer != first for answer in others) else []
    return {"passed": not lost, "note": "; ".join(lost), "ms: prefill, step": ms, "failed": failed}


@functools.cache
def opened(name: str, setup: Setup) -> Call:
    """A way to generate, ready; kept for the process's later cases."""
    way, folder = WAYS[name], bundles(setup)
    if way.ours:
        return ours(folder, way, setup)
    return compiled(folder, setup) if way.cache == "static" else eager(folder, setup)


@functools.cache
def bundles(setup: Setup) -> Path:
    """The checkpoint and its conversions, which DECODE_BUNDLES keeps for other processes."""
    kept = os.environ.get("DECODE_BUNDLES")
    folder = Path(kept or tempfile.mkdtemp(prefix="posexport-gpu-"))
    if not (folder / "llama").exists():
        make(folder / "llama", LITTLE if setup.rehearsal else SETTINGS)
    return folder


def make(target: Path, settings: dict[str, int]) -> None:
    """A checkpoint with random weights."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).half().save_pretrained(target)


def ours(folder: Path, way: Way, setup: Setup) -> Call:
    """A session's `generate`, greedy, without an end."""
    import posexport

    bundle = convert(folder, setup, way)
    captures = way.captures and not setup.rehearsal  # a CPU has no graphs
    session = posexport.load(bundle, provider=setup.provider, provider_options={"graph": True} if captures else None)
    return lambda prompts, count: session.generate(prompts, max_new_tokens=count, eos_token_id=[])


def convert_all(folder: Path, setup: Setup) -> None:
    """All bundles, a process each, for to convert one takes as long as to time all."""
    ways = [way for way in WAYS.values() if way.ours and not way.captures]
    if setup.rehearsal:
        return
    with ProcessPoolExecutor(len(ways), mp_context=multiprocessing.get_context("spawn")) as pool:
        for made in [pool.submit(convert, folder, setup, way) for way in ways]:
            made.exception()  # the way that needs it meets it again


def convert(folder: Path, setup: Setup, way: Way) -> Path:
    """The bundle of a way, if it is not there yet."""
    import posexport

    lowering = "auto" if setup.rehearsal else way.lowering
    bundle = folder / f"{way.precision}-{way.cache}-{lowering}"
    if not bundle.exists():
        posexport.convert(
            str(folder / "llama"),
            bundle,
            target=setup.target(way.precision),
            precision=way.precision,
            cache=way.cache,
            lowering=lowering,
            verify=False,
        )
    return bundle


def llama(folder: Path, setup: Setup) -> Any:
    """transformers' model, in float16."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(folder / "llama", dtype=torch.float16)
    return model.to(setup.torch_device).eval()


def eager(folder: Path, setup: Setup) -> Call:
    """transformers' `generate`, greedy, without an end."""
    import torch

    model = llama(folder, setup)
    model.generation_config.eos_token_id = None

    def call(prompts: Any, count: int) -> Any:
        ids = torch.tensor(prompts, device=setup.torch_device)
        settings = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **settings).cpu()

    return call


def compiled(folder: Path, setup: Setup) -> Call:
    """Greedy steps of the compiled model, captured as a CUDA graph, in a static cache that all calls share."""
    import torch
    from transformers import StaticCache

    model, caches = llama(folder, setup), {}
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True, dynamic=False)
    if setup.rehearsal:
        step = model

    @torch.inference_mode()
    def call(prompts: Any, count: int) -> Any:
        ids = torch.tensor(prompts, device=setup.torch_device)
        cache = caches.setdefault(len(ids), StaticCache(config=model.config, max_cache_len=PROMPT + STEPS + 1))
        cache.reset()
        places = torch.arange(PROMPT + count, device=ids.device)[None]
        found = [model(ids, position_ids=places[:, :PROMPT], past_key_values=cache, logits_to_keep=1).logits.argmax(-1)]
        for place in range(PROMPT, PROMPT + count - 1):
            logits = step(found[-1], position_ids=places[:, place : place + 1], past_key_values=cache).logits
            found.append(logits.argmax(-1))
        return torch.cat(found, 1).cpu()

    return call


def seconds(call: Callable[[int], Any], count: int) -> float:
    """Of one call."""
    begin = time.perf_counter()
    call(count)
    return time.perf_counter() - begin


PART = Part("decode", "milliseconds of prefill and step, beside transformers", cases, run, alone=True, limit=240)
