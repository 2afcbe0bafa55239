"""The sample in a bundle, ``parity.safetensors``: proof on a machine without PyTorch. Imports no torch.

At most 8 points over lengths, batches and paddings, the limit included. One is the length guard's rejection, if there
is a limit; one is padded; one point of a decoder runs in several calls through the KV cache. Each point has its inputs,
and the float64 values of every output, rounded to float32, at 64 seeded tokens (no padding) x 64 seeded channels, or at
fewer for many outputs (the caches of many layers). The header holds each output's scale max |y64|, PyTorch's float32
baseline error and the tolerance at that length. At most 2 MB. The format is safetensors: 8 bytes with the size of a
JSON header, the header, and little-endian arrays (``examples/self-check.mjs`` reads it in JavaScript).
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from posexport.errors import PosexportError
from posexport.parity.criterion import Array
from posexport.parity.grid.point import GridPoint
from posexport.spec import BATCH, TOKENS, Axis, InputSpec, OutputSpec
from posexport.targets.precisions import PrecisionName

LARGEST = 2_000_000
#: the key of the header in the file's metadata
KEY = "posexport.sample"


class StoredScale(msgspec.Struct, kw_only=True):
    """Scale, PyTorch's error and tolerance of one output at one point."""

    scale: float
    worst_baseline_error: float | None = None
    tolerance: float | None = None


class Header(msgspec.Struct, kw_only=True):
    """The description of the sample; ``truths``: for each point, one entry per output."""

    version: int = 1
    precision: PrecisionName
    limit: int | None
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    points: list[GridPoint]
    refusals: list[GridPoint]
    truths: list[list[StoredScale]]


def read(path: Path) -> tuple[Header, dict[str, Array]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise PosexportError(f"{path} does not exist: this bundle carries no sample, verify it with --against SOURCE")
    if path.stat().st_size > LARGEST:
        raise PosexportError(f"{path} has {path.stat().st_size} bytes, a sample has at most {LARGEST}: convert again")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        header = msgspec.json.decode(text, type=Header)
    except (SafetensorError, msgspec.MsgspecError, OSError, RecursionError) as err:
        raise PosexportError(f"{path} is not a parity sample ({err}): convert again") from err
    expected = {f"{n}.in.{s.name}" for n in range(len(header.points)) for s in header.inputs}
    suffixes = ("rows", "columns", "values")
    expected |= {
        f"{n}.out.{s.name}.{suffix}" for n in range(len(header.points)) for s in header.outputs for suffix in suffixes
    }
    if expected != set(tensors) or len(header.truths) != len(header.points):
        raise PosexportError(f"{path} does not hold the points it lists: convert again")
    return header, tensors


def flat(y: Array, axes: Sequence[Axis], keep_BT: NDArray[np.bool_] | None) -> tuple[Array, NDArray[np.bool_]]:
    """``y`` as [N, C], and a mask [N] without padding. Channels are the last axis unless it is batch or sequence."""
    order = [axes.index(name) for name in (BATCH, *TOKENS) if name in axes]
    y = np.moveaxis(y, order, range(len(order)))
    wide = y.ndim > len(order)
    flat_NC = y.reshape(-1, y.shape[-1]) if wide else y.reshape(-1, 1)
    if keep_BT is None or len(order) < 2:
        return flat_NC, np.ones(flat_NC.shape[0], dtype=np.bool_)
    return flat_NC, np.repeat(keep_BT.reshape(-1), flat_NC.shape[0] // keep_BT.size)
