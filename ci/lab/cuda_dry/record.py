"""What one call did on the stand-in device, from its events and ONNX Runtime's profile."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

import msgspec
from stand_in import Event, demangled

from posexport.base.targets.providers import CUDA
from posexport.run.placement import Event as Profiled
from posexport.run.placement import Placed, strays

#: what computes attention, by what its kernels' names contain; the first that fits
KINDS = {
    "cudnn": r"cudnnBackendExecute",
    "xqa": r"\bxqa|kernel_mha\b",
    "flash, split": r"flash_fwd_splitkv",
    "flash": r"flash_fwd_kernel|flash::|FlashAttn",
    "lean": r"lean_",
    "memory-efficient": r"attention_kernel_batched_impl|AttentionKernel<|fmha_cutlass",
    "tensorrt": r"fused_multihead|fmha_v2|fmha_mhca|run_fmha",
    "decoder-masked": r"masked_multihead_attention",
    "unfused": r"[Ss]oftmax",
}
#: a Softmax of the graph over scores of all pairs
BY_NODES = "unfused (nodes)"
_WORK = ("launch", "product")


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call.

    Attributes:
        kernels: launches, and products by cuBLAS and cuDNN: each counts as one.
        attention: what computed attention -> in how many nodes.
        to_host, to_device: copies between the host and the device inside the graph.
        waits: of the host for the device, before the last kernel.
        on_cpu: operators of nodes on the CPU that are not shape arithmetic -> how many.
        peak_bytes: of device memory while it ran, beyond weights and inputs.
        cuda_graph: ``captured``, or ONNX Runtime's reason; empty where it was not tried.
        error: why it did not run.
    """

    kernels: int = 0
    attention: dict[str, int] = {}
    to_host: int = 0
    to_device: int = 0
    waits: int = 0
    on_cpu: dict[str, int] = {}
    peak_bytes: int = 0
    cuda_graph: str = ""
    error: str = ""


class Node(msgspec.Struct, frozen=True):
    """A node that ran, and what it asked the device for."""

    placed: Placed
    events: list[Event]


def matched(profiled: Sequence[Profiled], start_ns: int, events: Sequence[Event]) -> list[Node]:
    """Every node with its events, by time: an event belongs to the innermost node around it.

    ``profiled``: the nodes of a call in order of their begin; ``start_ns``: when the profile began.
    """
    nodes = [Node(_placed(each), []) for each in profiled]
    begins = [start_ns + int(each.ts * 1000) for each in profiled]
    ends = [begin + int((each.dur + 1) * 1000) for begin, each in zip(begins, profiled, strict=True)]
    for event in events:
        index = bisect_right(begins, event.ns) - 1
        while index >= 0 and ends[index] < event.ns:  # of one around it, whose branch this one is in
            index -= 1
        if index >= 0:
            nodes[index].events.append(event)
    return nodes


def _placed(each: Profiled) -> Placed:
    outputs = tuple((dtype, tuple(shape)) for one in each.args.output_type_shape for dtype, shape in one.items())
    return Placed(each.node, each.args.op_name, each.args.provider, outputs)


def call(nodes: Sequence[Node], events: Sequence[Event], peak_bytes: int) -> Call:
    """The record of a call whose nodes are `matched` with all of its ``events``."""
    copies = Counter(event.name for node in nodes for event in node.events if event.kind == "copy")
    last = max((event.ns for event in events if event.kind in _WORK), default=0)
    placed = [node.placed for node in nodes if not node.placed.op_type.startswith("Memcpy")]
    return Call(
        kernels=sum(event.kind in _WORK for event in events),
        attention=dict(Counter(filter(None, map(attention_kind, nodes)))),
        to_host=copies["device-to-host"],
        to_device=copies["host-to-device"],
        waits=sum(event.kind == "sync" and event.ns < last for event in events),
        on_cpu=dict(Counter(each.op_type for each in strays(placed, CUDA.ort_name))),
        peak_bytes=peak_bytes,
    )


def attention_kind(node: Node) -> str | None:
    """What computes attention in the node; None for one that computes none."""
    operator, outputs = node.placed.op_type, node.placed.outputs
    if operator == "Softmax":
        return BY_NODES if any(len(shape) > 3 for _, shape in outputs) else None
    if "Attention" not in operator:
        return None
    if node.placed.provider != CUDA.ort_name:
        return "on the CPU"
    names = {event.name for event in node.events if event.kind in _WORK}
    whole = " ".join(demangled(names).values())
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, whole)), "unknown")
