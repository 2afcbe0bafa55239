"""Speed and memory, measured in one run against what a user would get otherwise."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEADS, HEAD_SIZE, TABLE = 12, 64, 2048
WAYS = ("posexport", "einsum formula", "no positions")


def attention_module(way: str):
    """One attention over q, k, v [B, 12, T, 64] with a table of relative_key, as a module."""
    import torch
    from torch import nn

    from posexport.encodings.positions import Positions
    from posexport.encodings.relative_key import RelativeKey
    from posexport.nn.attention import attend

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoding = RelativeKey(max_positions=TABLE, head_size=HEAD_SIZE)

        def forward(self, q, k, v):
            positions = Positions.counted(q.shape[2])
            if way == "posexport":
                scores = self.encoding.scores(q, k, positions, positions)
                return attend(q, k, v, scale=HEAD_SIZE**-0.5, scores=scores)
            if way == "no positions":
                return attend(q, k, v, scale=HEAD_SIZE**-0.5)
            # as the published code has it: a row of the table for every pair, then einsum
            ids = positions.slots_T
            rows = self.encoding.table[ids[:, None] - ids[None, :] + TABLE - 1]
            bias = torch.einsum("bhld,lrd->bhlr", q, rows)
            return ((q @ k.mT + bias) * HEAD_SIZE**-0.5).softmax(-1) @ v

    torch.manual_seed(0)
    module = Attention().eval()
    nn.init.normal_(module.encoding.table)
    return module


def write_attention(way: str, path: Path) -> None:
    """The graph of one way, with batch and length dynamic."""
    from posexport.export.build import build
    from posexport.sources.base import Source
    from posexport.spec import Envelope, InputSpec, OutputSpec

    axes = ["batch_size", HEADS, "sequence_length", HEAD_SIZE]
    source = Source(
        name=way,
        kind="builtin",
        module=Tupled(attention_module(way)),
        inputs=[InputSpec(name=n, dtype="float32", axes=axes, role="values") for n in "qkv"],
        outputs=[OutputSpec(name="context", axes=axes)],
        envelope=Envelope(),
        encoding=None,
        task="features",
        sha256="0" * 64,
    )
    build(source, path, opset=18, ir_version=10)


def Tupled(module):
    """The module with its one output in a tuple."""
    from torch import nn

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, q, k, v):
            return (self.inner(q, k, v),)

    return Wrapped().eval()


def peak_kb() -> int:
    """This process's peak memory. Not getrusage's, which a child inherits from the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def measure_attention(path: str, length: int, threads: int, runs: int) -> None:
    """In a process of its own: median time and what the peak memory grew by; printed as JSON."""
    import numpy as np

    from posexport.runtime.providers import make_session

    session = make_session(Path(path), threads=threads, spinning=False)
    rng = np.random.default_rng(0)
    feed = {n: rng.standard_normal((1, HEADS, length, HEAD_SIZE), dtype=np.float32) for n in "qkv"}
    before = peak_kb()
    out = session.run(None, feed)[0]
    peak = peak_kb()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    checksum = float(np.abs(out).sum())
    print(json.dumps({"ms": statistics.median(times) * 1e3, "growth_mb": (peak - before) / 1024, "sum": checksum}))


def attention(args: argparse.Namespace) -> None:
    """Alternates the ways, a fresh process each time, and prints medians and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {way: Path(folder) / f"{i}.onnx" for i, way in enumerate(WAYS)}
        for way, path in paths.items():
            write_attention(way, path)
        print(f"relative_key attention, batch 1, {HEADS} heads of {HEAD_SIZE}, float32, {args.threads} threads")
        print(f"{'length':>6}  {'way':16} {'ms':>9} {'to formula':>11} {'peak growth':>12} {'to formula':>11}")
        for length in args.length:
            rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(args.rounds):
                for way in WAYS:
                    command = [sys.executable, __file__, "_one", str(paths[way]), str(length), str(args.threads)]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    rows[way].append(json.loads(done.stdout))
            ours, theirs = rows["posexport"][0]["sum"], rows["einsum formula"][0]["sum"]
            assert abs(ours - theirs) < 1e-4 * theirs, "the two ways disagree"
            formula = {key: statistics.median(r[key] for r in rows["einsum formula"]) for key in ("ms", "growth_mb")}
            for way in WAYS:
                ms = statistics.median(r["ms"] for r in rows[way])
                mb = statistics.median(r["growth_mb"] for r in rows[way])
                ratios = f"{formula['ms'] / ms:10.2f}x {mb:9.0f} MB {mb / formula['growth_mb']:11.2f}"
                print(f"{length:6}  {way:16} {ms:9.1f} {ratios}", flush=True)


def convert(args: argparse.Namespace) -> None:
    """Wall time and peak memory of the command, in processes of their own."""
    for label, extra in (("proven", []), ("not proven", ["--no-verify"])):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "posexport", "convert", args.source, "-o", f"{folder}/b", *extra]
            start = time.perf_counter()
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            wall = time.perf_counter() - start
            code = os.waitstatus_to_exitcode(status)
            print(f"convert {args.source}, {label}: {wall:.1f} s, peak {usage.ru_maxrss / 1024:.0f} MB, exit {code}")


def main() -> None:
    if sys.argv[1:2] == ["_one"]:
        measure_attention(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), runs=5)
        return
    parser = argparse.ArgumentParser(prog="ci/bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("attention", help="blockwise relative attention against the einsum formula")
    one.add_argument("--length", type=int, nargs="+", default=[128, 512, 1024, 2048])
    one.add_argument("--threads", type=int, default=2)
    one.add_argument("--rounds", type=int, default=3)
    one.set_defaults(run=attention)
    two = commands.add_parser("convert", help="time and memory of a conversion")
    two.add_argument("source")
    two.set_defaults(run=convert)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
