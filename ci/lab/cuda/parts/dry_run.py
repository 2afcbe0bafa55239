"""What the dry run says of each graph, beside what the card does: attention kernels, nodes on the CPU, copies.

ONNX Runtime prints the kernel of every attention node where ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO is set; of
GroupQueryAttention it prints MATH for cuDNN's and XQA too. So on a card the names of kernels that ran count as well.
"""

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bundles import case_of, converted
from part import Part, Row, Setup
from record import KINDS as RECORDED

CLAIMS = Path("ci/results/cuda-dry.json")
DEBUG = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO"
#: ONNX Runtime's names of kernels -> the dry run's
KINDS = {
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "memory-efficient",
    "CUDNN_FLASH_ATTENTION": "cudnn",
    "LEAN_ATTENTION": "lean",
    "MATH": "unfused",
    "TRT_FUSED_ATTENTION": "tensorrt",
    "TRT_FLASH_ATTENTION": "tensorrt",
    "TRT_CROSS_ATTENTION": "tensorrt",
    "TRT_CAUSAL_ATTENTION": "tensorrt",
    "DECODER_ATTENTION": "decoder-masked",
    "XQA": "xqa",
}
#: the dry run tells apart what ONNX Runtime prints under one name
_ALIKE = {"flash, split": "flash"}
_PRINTED = re.compile(r"Operator=(\w+) .*SdpaKernel=(\w+)")
#: what GroupQueryAttention's MATH may be
_UNTOLD, _MAY_BE = "not told", {"unfused", "cudnn", "xqa"}
#: by names of kernels that ran: as the dry run's, and cuDNN's own, which its stand-in does not have
_RAN = {"cudnn": r"cudnn.*(sdpa|fmha|flash)", **{kind: names for kind, names in RECORDED.items() if kind != "cudnn"}}


def card() -> str:
    """Which card's claims are compared: of the same major compute capability."""
    if compute := os.environ.get("DRYRUN_COMPUTE"):
        return {"80": "A100", "90": "H100"}[compute]
    import torch

    major = torch.cuda.get_device_capability()[0]
    return {8: "A100", 9: "H100"}.get(major, f"compute capability {major}")


def claims(of: str) -> dict[str, Any]:
    """By case, the calls by graph."""
    rows = json.loads(CLAIMS.read_bytes())["rows"]
    return {row["case"]: row["calls"] for row in rows if row["card"] == of and row.get("calls")}


def cases(setup: Setup) -> list[str]:
    """Those with claims in fp16, then those in other precisions.

    A rehearsal computes nothing, so of a graph that branches by its mask's values it takes any branch: it has others.
    """
    names = {row["case"]: None for row in json.loads(CLAIMS.read_bytes())["rows"] if row.get("calls")}
    names = sorted(names, key=lambda name: name.split()[1] != "fp16")
    return setup.few(names, "encoder-t5 fp16", "decoder-nope fp16 static cache filled-slots")


def run(name: str, setup: Setup) -> Row:
    """Every call of a case that the claims have."""
    claimed = claims(card()).get(name)
    if claimed is None:
        return {"passed": True, "note": f"there are no claims about {card()}"}
    with converted(case_of(name), setup) as bundle:
        seen = observed(bundle, case_of(name), claimed, setup)
    wrong = [
        f"{file}, {call}: {what}"
        for file, calls in claimed.items()
        for call, claim in calls.items()
        for what in differences(claim, seen.get(file, {}).get(call, {}))
    ]
    return {"passed": not wrong, "note": "; ".join(wrong), "observed": seen}


def differences(claim: dict[str, Any], seen: dict[str, Any]) -> Iterator[str]:
    """What is otherwise than the dry run says."""
    if claim.get("error") or seen.get("error") or not seen:
        if not claim.get("error"):
            yield f"error: {seen.get('error', 'not run')}"
        return
    # attention by nodes of the graph prints nothing
    wanted = Counter(_ALIKE.get(kind, kind) for kind, n in claim.get("attention", {}).items() for _ in range(n))
    wanted = Counter({kind: n for kind, n in wanted.items() if kind in {*KINDS.values()}})
    told = Counter(seen["attention"])
    untold = told.pop(_UNTOLD, 0)
    rest = wanted - told
    if told - wanted or rest.total() != untold or not rest.keys() <= _MAY_BE:
        yield f"attention is {seen['attention'] or 'none'}, the dry run says {dict(wanted) or 'none'}"
    ran = set(seen.get("ran", wanted)) - {"unfused"}  # of which a Softmax anywhere has the name
    if ran != set(wanted) - {"unfused"}:
        yield f"kernels of {sorted(ran) or 'none'} ran, the dry run says {sorted(wanted) or 'none'}"
    if claim.get("on_cpu", {}) != seen["on_cpu"]:
        yield f"on the CPU are {seen['on_cpu'] or 'none'}, the dry run says {claim.get('on_cpu') or 'none'}"
    for way in ("to_host", "to_device"):
        if seen[way] > claim.get(way, 0):
            yield f"{seen[way]} nodes copy {way.replace('_', ' ')}, the dry run says {claim.get(way, 0)} copies"


def observed(bundle: Path, case: Any, claimed: dict[str, Any], setup: Setup) -> dict[str, dict[str, Any]]:
    """By graph and call: kernels that ONNX Runtime printed, nodes on the CPU, nodes that copy."""
    from worker import Graph, graphs, inputs_of, sized

    from posexport.run.bundle.read import read

    os.environ[DEBUG] = "1"
    manifest, known = read(bundle), {}
    for call, size in case.calls().items():
        if any(call in calls for calls in claimed.values()):
            known[call] = sized(manifest, size)
    found: dict[str, dict[str, Any]] = {}
    for file, graph in graphs(bundle):
        found[file] = {}
        with TemporaryDirectory() as folder:
            opened, printed = Graph(bundle / file, graph, Card(), Path(folder)), {}
            for call, arrays in known.items():
                try:
                    values = opened.values(inputs_of(graph, arrays))
                    with capturing(Path(folder, "printed")) as text, kernels_that_run(setup) as ran:
                        outputs = opened.run(call, values)
                    # of both blocks once they are over
                    printed[call] = {"attention": kinds(text()), **ran()}
                    pass_on(graph, arrays, outputs)
                except Exception as err:  # noqa: BLE001  # what ONNX Runtime raises is the finding
                    found[file][call] = {"error": " ".join(str(err).split())[:300]}
            for call, seen in placed(opened).items():
                found[file].setdefault(call, {**printed.get(call, {"attention": {}}), **seen})
    return found


def kinds(text: str) -> dict[str, int]:
    """Kernels by what ONNX Runtime printed of two calls."""
    found = [
        _UNTOLD if (operator, kernel) == ("GroupQueryAttention", "MATH") else KINDS.get(kernel, kernel)
        for operator, kernel in _PRINTED.findall(text)
    ]
    return dict(Counter(found[len(found) // 2 :]))


@contextmanager
def kernels_that_run(setup: Setup) -> Iterator[Any]:
    """Kinds of attention by the names of all kernels in the block, by PyTorch's profiler; none in a rehearsal."""
    if setup.rehearsal:
        yield dict
        return
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield lambda: {"ran": kinds_of(event.name for event in profiler.events())}


def kinds_of(names: Iterable[str]) -> list[str]:
    """Which kinds of attention have a kernel among these names."""
    found = {next((kind for kind, pattern in _RAN.items() if re.search(pattern, name)), "") for name in names}
    return sorted({_ALIKE.get(kind, kind) for kind in found} - {""})


def pass_on(graph: Any, arrays: dict[str, Any], outputs: dict[str, Any]) -> None:
    """What later graphs take of this one's outputs."""
    from posexport.run.ort_values import to_array

    for own, whole in getattr(graph, "output_names", {}).items():
        if own in outputs:
            arrays[whole] = to_array(outputs[own])


def placed(opened: Any) -> dict[str, dict[str, Any]]:
    """By call, from ONNX Runtime's profile: nodes on the CPU that are not shape arithmetic, and nodes that copy."""
    from record import matched

    from posexport.base.targets.providers import CUDA
    from posexport.run.placement import kernels, read_profile, strays

    start = opened.session.get_profiling_start_time_ns()
    profile = sorted(kernels(read_profile(Path(opened.session.end_profiling()))), key=lambda each: each.ts)
    found = {}
    for name, begin, events, _ in opened.windows:
        window = [each for each in profile if begin <= start + each.ts * 1000 <= events[-1].ns]
        nodes = [node.placed for node in matched(window, start, [])]
        copies = Counter(node.op_type for node in nodes)
        others = [node for node in nodes if not node.op_type.startswith("Memcpy")]
        found[name] = {
            "nodes": len(nodes),
            "on_cpu": dict(Counter(node.op_type for node in strays(others, CUDA.ort_name))),
            "to_host": copies["MemcpyToHost"],
            "to_device": copies["MemcpyFromHost"],
        }
    return found


class Card:
    """A real card in the place of the dry run's stand-in, of which there are no events: a call is its time."""

    memory = peak = 0

    def allocator(self) -> dict[str, str]:
        return {}

    def expect(self, contents: Any) -> None:
        """Copies say what they say."""

    def reset(self) -> None:
        """Nothing is kept."""

    def events(self, file: Path) -> list[Any]:
        """One, which says when the call ended."""
        from stand_in import Event

        return [Event(time.time_ns(), "end", file.name, ())]


@contextmanager
def capturing(file: Path) -> Iterator[Any]:
    """What this process prints inside the block, C++ included."""
    sys.stdout.flush()
    kept = os.dup(1)
    with file.open("wb") as target:
        os.dup2(target.fileno(), 1)
    try:
        yield lambda: file.read_text(errors="replace")
    finally:
        os.dup2(kept, 1)
        os.close(kept)


PART = Part("dry-run", "the dry run's claims about kernels and copies, beside the card", cases, run, stubs=True)
