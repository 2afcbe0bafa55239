"""Milliseconds of a call: beside the same model without positions, beside PyTorch's best, beside what the card can do.

Inputs and outputs are on the device. Candidates of a case are called in turn, so that what slows one slows all.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from bundles import case_of, converted
from part import Part, Row, Setup

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

#: batch and length
CALLS = {"8x512": (8, 512), "1x2048": (1, 2048), "1x128": (1, 128)}
LITTLE = {"8x512": (2, 16)}
#: encoding -> at most so many times as long as the same model without positions, at every size or at the one given
GOALS = {"sinusoidal": (1.1, ""), "rope": (1.1, ""), "alibi": (1.1, ""), "t5": (1.1, ""), "relative-key": (1.5, "512")}
#: than PyTorch's best, beside the noise of a run
NOISE = 1.02


def cases(setup: Setup) -> list[str]:
    """All encodings at the middle size first."""
    found = [f"encoder-{encoding} fp16 {size}" for size in CALLS for encoding in GOALS]
    return setup.few(found, "encoder-relative-key fp16 8x512")


def run(name: str, setup: Setup) -> Row:
    """One encoding at one size."""
    model, precision, size = name.split()
    batch, length = (LITTLE if setup.rehearsal else CALLS)[size]
    kind = model.removeprefix("encoder-")
    ids = np.random.default_rng(0).integers(0, 50, (batch, length))
    calls = {
        "nope": bound(session(f"encoder-nope {precision}", setup), ids, setup),
        "posexport": bound(session(f"{model} {precision}", setup), ids, setup),
        **torch_calls(kind, ids, setup),
    }
    ms, failed = in_turn(calls, runs=3 if setup.rehearsal else 30)
    row: Row = {"passed": True, "note": "", "ms": ms, "failed": failed}
    if setup.rehearsal:
        return {**row, "passed": not failed, "note": "; ".join(f"{k}: {v}" for k, v in failed.items())}
    row |= roofline(batch, length)
    ratio = ms["posexport"] / ms["nope"]
    row |= {"ratio": round(ratio, 3), "of_roofline": round(row["roofline_ms"] / ms["posexport"], 3)}
    limit, only = GOALS[kind]
    missed = [f"{ratio:.2f} times nope, the goal is {limit}"] if only in size and ratio > limit else []
    best = min((ms[each] for each in ms if each.startswith("torch")), default=float("inf"))
    if ms["posexport"] > NOISE * best:
        missed.append(f"{ms['posexport']:.3f} ms, PyTorch's best takes {best:.3f} ms")
    return {**row, "passed": not missed, "note": "; ".join(missed)}


@functools.cache
def session(name: str, setup: Setup) -> "InferenceSession":
    """Of a model of `torch_encoder.Sizes`, as bundles are opened; kept for later cases of the process."""
    from torch_encoder import Sizes

    from posexport.run.bundle.manifest import MODEL
    from posexport.run.providers import bundle_session

    sizes = little() if setup.rehearsal else Sizes()
    with converted(case_of(name), setup, sizes.settings() + positions(name)) as bundle:
        return bundle_session(bundle / MODEL, provider=setup.provider)


def positions(name: str) -> tuple[str, ...]:
    """Of an encoding with a table of distances: as many as the PyTorch model has."""
    from torch_encoder import POSITIONS

    return (f"max_positions={POSITIONS}",) if "relative-key" in name else ()


def little() -> Any:
    """Sizes of the rehearsal."""
    from torch_encoder import Sizes

    return Sizes(layers=1, hidden=64, heads=2, feedforward=64)


def bound(opened: "InferenceSession", ids: Any, setup: Setup) -> Callable[[], None]:
    """A call whose inputs and outputs stay on the device, and which ends when the device has."""
    from posexport.base.targets.providers import provider_named
    from posexport.run.ort_values import to_value

    device = provider_named(setup.provider).device
    binding = opened.io_binding()
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    for port in opened.get_inputs():
        binding.bind_ortvalue_input(port.name, to_value(arrays[port.name], device))
    for port in opened.get_outputs():
        binding.bind_output(port.name, device, 0)
    return lambda: opened.run_with_iobinding(binding)


def torch_calls(kind: str, ids: Any, setup: Setup) -> dict[str, Callable[[], None]]:
    """PyTorch's candidates; in the rehearsal nothing is compiled."""
    import torch
    from torch_encoder import Encoder, Sizes

    device, tokens = setup.torch_device, torch.from_numpy(ids).to(setup.torch_device)
    dtype = torch.float32 if setup.rehearsal else torch.float16

    def call(model: Any) -> Callable[[], None]:
        def once() -> None:
            with torch.inference_mode():
                model(tokens)
            if device == "cuda":
                torch.cuda.synchronize()

        return once

    made = {flex: Encoder(kind, little() if setup.rehearsal else Sizes(), flex=flex) for flex in (False, True)}
    ready = {flex: model.to(device, dtype).eval() for flex, model in made.items()}
    if setup.rehearsal:
        return {"torch sdpa": call(ready[False]), "torch flex": call(ready[True])}
    return {
        "torch sdpa": call(ready[False]),
        "torch sdpa compiled": call(torch.compile(ready[False], dynamic=False)),
        "torch flex compiled": call(torch.compile(ready[True], dynamic=False)),
    }


def in_turn(calls: dict[str, Callable[[], None]], runs: int) -> tuple[dict[str, float], dict[str, str]]:
    """Median milliseconds of each, and why some have none."""
    failed: dict[str, str] = {}
    for name, call in calls.items():
        try:
            for _ in range(5 if runs > 3 else 1):
                call()
        except Exception as err:  # noqa: BLE001  # a rival that does not work is a finding
            failed[name] = " ".join(f"{type(err).__name__}: {err}".split())[:300]
    times: dict[str, list[float]] = {name: [] for name in calls if name not in failed}
    for _ in range(runs):
        for name, taken in times.items():
            begin = time.perf_counter()
            calls[name]()
            taken.append(1e3 * (time.perf_counter() - begin))
    return {name: round(statistics.median(taken), 4) for name, taken in times.items()}, failed


def roofline(batch: int, length: int) -> Row:
    """Milliseconds that the card's measured arithmetic and bandwidth allow for a call."""
    from torch_encoder import Sizes

    flops, bandwidth = peak()
    sizes = Sizes()
    arithmetic, memory = sizes.flops(batch, length) / flops, sizes.moved(batch, length) / bandwidth
    return {"roofline_ms": round(1e3 * max(arithmetic, memory), 4), "tflops": flops / 1e12, "tb_s": bandwidth / 1e12}


@functools.cache
def peak() -> tuple[float, float]:
    """Operations and bytes in a second: of a product of large matrices in half precision, and of a copy."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(large)
    return 2 * 8192**3 / seconds(lambda: a @ b), 2 * large.numel() / seconds(lambda: other.copy_(large))


def seconds(call: Callable[[], Any]) -> float:
    """Of one call on the card, by its own clock."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        call()
    begin.record()
    for _ in range(10):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e4


PART = Part("speed", "milliseconds beside nope, PyTorch's best and the roofline", cases, run, alone=True)
