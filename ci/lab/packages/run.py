"""Converts modules of public packages by the default command and judges the graphs; run by ``ci/lab/packages/run``.

The judge is plain ONNX Runtime against the module's forward in float64 (float32 if it has dtypes of its own) at other
sizes than the example's: 1e-4 of the largest value may differ, and where PyTorch in float32 itself is further from
float64, four times what it is off; what is more than that at one draw is drawn eight times more, and the median may be
twice PyTorch's. A module that computes something else in float64 is judged in float32.
ci/results/packages.jsonl has a line for each module; one that is there is left out without ``--again``, which keeps the
outcome of the first try as ``first``.
"""

import argparse
import fcntl
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

import posexport
from ci.lab.packages.draws.order import DRAWS
from ci.lab.packages.modules import AXES, CASES
from posexport.base.sizes import multiple
from posexport.base.spec import BATCH, SEQUENCE, InputSpec
from posexport.modules.call import named_outputs
from posexport.run.bundle.manifest import Manifest

for _draw in DRAWS:  # each registers its cases
    importlib.import_module(f"ci.lab.packages.draws.{_draw}")
ROOT = Path(__file__).parent.parent.parent.parent
RECORD = ROOT / "ci/results/packages.jsonl"
#: what may differ, of the largest value, and how many times PyTorch's own error in float32
TOLERANCE, _TIMES = 1e-4, 4
#: where float32 is this far from float64 the module computes something else in float64, as norms with an eps by dtype
_OTHER = 0.01
#: how often a difference beyond that is drawn again, and how many times PyTorch's its median may be
_DRAWS, _MEDIAN_TIMES = 8, 2
#: batch, and by how much other axes are larger than at least
_SIZES = ((1, 9), (3, 14), (2, 23))
#: seconds of processor time, which other processes do not change
_LIMIT = 240


def made(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The module in eval mode, with weights so large that positions matter, and its example."""
    CASES[name][1]()  # some packages draw random numbers while they are imported
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    module, inputs = CASES[name][1]()
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point():  # a zero point of quantization
                continue
            if not parameter.any():  # a matrix of zeros hides all before it
                parameter.normal_(std=0.1)
            elif parameter.dim() > 1 and float(parameter.std()) < 0.08:
                parameter.mul_(3)
    module.eval()  # what it returns may be nothing, as of loralib's layers
    return module, inputs


def judged(name: str, bundle: Path, manifest: Manifest) -> float:
    """The largest difference at all sizes, of the largest value; infinity for a shape or values that are not its."""
    session, worst = onnxruntime.InferenceSession(bundle / "model.onnx", providers=["CPUExecutionProvider"]), 0.0
    for batch, more in _SIZES:
        for off, own in differences(name, session, manifest, batch, more):
            # a saturated output turns rounding into differences that one draw says little about
            if own > TOLERANCE and _TIMES * own < off < _OTHER:
                many = [differences(name, session, manifest, batch, more, seed) for seed in range(1, _DRAWS + 1)]
                off, own = np.median(np.array(many).max(1), 0)
                allowed = _MEDIAN_TIMES * own
            else:
                allowed = max(TOLERANCE, _TIMES * own)
            if not off <= allowed:  # NaN too
                return float("inf")
            worst = max(worst, float(off))
    return worst


def differences(
    name: str,
    session: onnxruntime.InferenceSession,
    manifest: Manifest,
    batch: int,
    more: int,
    seed: int | None = None,
) -> list[tuple[float, float]]:
    """How far the graph is from the reference, and PyTorch in float32, for each output at inputs drawn with ``seed``.

    Infinity for another shape. None: the seed of the module's weights.
    """
    module, example = made(name)
    if seed is not None:
        torch.manual_seed(seed)
    tensors, fed = drawn(manifest, example, batch, more)
    with torch.no_grad():
        single = named_outputs(module(**tensors))
    expected = reference(module, tensors)
    outputs = session.run([spec.name for spec in manifest.outputs if spec.compared], fed)
    found = list[tuple[float, float]]()
    for want, plain, got in zip(expected.values(), single.values(), outputs, strict=True):
        if want.dim() and tuple(want.shape) != got.shape:
            return [(float("inf"), 0.0)]
        off, own = _off(got, want), _off(plain.numpy(), want)
        if own > _OTHER and off > TOLERANCE:
            off, own = _off(got, plain), 0.0
        found.append((off, own))
    return found


def _off(got: np.ndarray, want: Tensor) -> float:
    exact = want.double().numpy()
    return float(np.abs(got.astype(np.float64) - exact).max() / max(float(np.abs(exact).max()), 1e-30))


def reference(module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs in float64, which the module is left in, or in float32 where its forward makes tensors of that."""
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    with torch.no_grad():
        try:
            return named_outputs(module.double()(**wide))
        except (RuntimeError, TypeError, KeyError):
            return named_outputs(module.float()(**tensors))


def drawn(
    manifest: Manifest, example: dict[str, Tensor], batch: int, more: int
) -> tuple[dict[str, Tensor], dict[str, np.ndarray]]:
    """Inputs of the module, and of the graph: no token is padding but by row lengths, and a KV cache is empty.

    The axes of the example's inputs have ``batch`` rows and are by ``more`` larger than at least.
    """
    limits, sizes = manifest.limits, dict[str, int]()
    tensors, fed = dict[str, Tensor](), dict[str, np.ndarray]()
    for number, spec in enumerate(sorted(manifest.inputs, key=lambda spec: spec.role == "rows")):
        # a decoder's ids have a name of the bundle's
        name = next(iter(example)) if spec.role == "tokens" and spec.name not in example else spec.name
        for axis in (axis for axis in spec.axes if isinstance(axis, str)):
            step = limits.size_steps.get(axis, 1)
            size = multiple(max(limits.min_sizes.get(axis, 1), limits.min_length) + more, step) + number * step
            most = limits.max_length if axis in limits.limited_axes else limits.max_sizes.get(axis)
            sizes.setdefault(axis, batch if axis == BATCH else min(size, most or size))
        if name not in example:
            length = 0 if spec.role == "cache" else sizes[SEQUENCE]
            shape = [batch if axis == BATCH else length if isinstance(axis, str) else axis for axis in spec.axes]
            fed[spec.name] = np.full(shape, spec.role != "cache", spec.dtype)
            continue
        shape, first = [sizes[axis] if isinstance(axis, str) else axis for axis in spec.axes], example[name]
        if first.is_floating_point():
            tensors[name] = _values(spec, first, shape)
        elif spec.role == "lengths":  # of a batch with a row without padding
            tensors[name] = torch.randint(1, sizes[SEQUENCE] + 1, shape, dtype=first.dtype)
            tensors[name][0] = sizes[SEQUENCE]
        elif spec.role == "mask":
            tensors[name] = torch.full(shape, 1 - spec.padding, dtype=first.dtype)
        elif spec.column_sizes:  # each column has its own ids
            tensors[name] = (torch.rand(shape) * (first.amax(0) + 1)).to(first.dtype)
        else:
            most = sizes[spec.rows_of] if isinstance(spec.rows_of, str) else int(first.max()) + 1
            least = spec.least if isinstance(spec.least, int) else 0
            tensors[name] = torch.randint(least, most, shape, dtype=first.dtype)
        fed[spec.name] = tensors[name].numpy().copy()
    return tensors, fed


def _values(spec: InputSpec, first: Tensor, shape: list[int]) -> Tensor:
    """Real numbers as the example's: from 0 on, pixels, or with columns of its ids."""
    is_signed = bool((first < 0).any())
    values = torch.randn(shape) if is_signed or float(first.max()) > 1 else torch.rand(shape)
    values = values if is_signed else values.abs()  # counts, distances, levels of noise; pixels
    if not spec.column_sizes and not (is_signed and first.dim() == 2):
        return values
    ids, rows = (first == first.floor()).all(0), torch.randint(len(first), shape)
    return torch.where(ids, first.gather(0, rows), values)


def converted(name: str, into: Path) -> dict[str, Any]:
    """The line of a module."""
    module, inputs = made(name)
    began, line = time.process_time(), {"module": name, "package": CASES[name][0]}
    bundle = into / name
    try:
        result = posexport.convert(module, bundle, example_inputs=inputs, axes=AXES.get(name), force=True)
    except posexport.PosexportError as err:
        return line | {"outcome": "refused", "said": str(err)} | cost(began)
    spent = cost(began)  # before other modules are made, to judge
    if result.manifest is None:
        return line | {"outcome": "refused", "said": missed(result)} | spent
    line |= {"outcome": "right", "said": result.verdict}
    line["attention"] = any("ttention" in str(lowering) for lowering in result.manifest.lowerings)
    line["off"] = judged(name, bundle, result.manifest)
    if line["off"] == float("inf"):
        line["outcome"] = "wrong"
    return line | spent


def missed(result: posexport.Conversion) -> str:
    """What a proof that failed says of the module: the last line of it that may be why, and what is wrong."""
    lines = [remark for remark in result.remarks if "when the module was traced" in remark]
    return "; ".join([*lines[-1:], *(line for line in result.to_text().splitlines() if line.startswith("FAILED"))])


def cost(began: float) -> dict[str, Any]:
    """Seconds of processor time since ``began``, peak memory and what was run."""
    seconds = round(time.process_time() - began)
    memory = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    return {"cpu_seconds": seconds, "gigabytes": memory, "commit": commit, "torch": torch.__version__}


def record(line: dict[str, Any]) -> None:
    with RECORD.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        lines = {old["module"]: old for old in map(json.loads, file)}
        if old := lines.get(line["module"]):
            line["first"] = old.get("first", old["outcome"])
        lines[line["module"]] = line
        file.truncate(0)
        file.writelines(sorted(json.dumps(line) + "\n" for line in lines.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--into", type=Path, default=ROOT / ".cache/packages-run")
    parser.add_argument("--again", action="store_true", help="what is recorded, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    sys.path.append(os.environ["PACKAGES"])  # behind the environment's own packages
    if options.one:
        resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT, _LIMIT + 5))
        record(converted(options.one, options.into))
        return
    done = {json.loads(line)["module"] for line in RECORD.read_text().splitlines()} if RECORD.exists() else set()
    for name in options.names or CASES:
        if options.again or name not in done:
            # a process for each: what packages change in PyTorch stays there
            command = [sys.executable, "-m", "ci.lab.packages.run", "--one", name, "--into", str(options.into)]
            ended = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
            lines = ended.stderr.strip().splitlines() or [f"ended with {ended.returncode}"]
            outcome, said = "crashed", lines[-1:] if ended.returncode else []
            if ended.returncode == -signal.SIGXCPU:
                outcome, said = "unfinished", [f"not done within {_LIMIT} s of processor time"]
            if said:
                record({"module": name, "package": CASES[name][0], "outcome": outcome, "said": said[0]})
            print(name, *said, flush=True)


if __name__ == "__main__":
    main()
