"""What ships is right on both sides of every switch: conversions by the command line's defaults, compared with PyTorch.

Every built-in model and every golden checkpoint, as users convert them (portable and default opset), then for the CPU
and with a static KV cache. No proof is run: a graph that says which branches run finds the sizes at which each one
does, and the values there, and at lengths around a tile of attention, are compared by the proof's criterion.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from posexport.bundle.manifest import model_of
from posexport.cli import group
from posexport.parity.branches.coverage import cover
from posexport.parity.calls import in_calls
from posexport.parity.criterion import measure, tolerance
from posexport.parity.grid.grid import grid
from posexport.parity.grid.inputs import draw, token_mask
from posexport.parity.grid.memory import Budget
from posexport.parity.grid.point import GridPoint
from posexport.parity.references.precision_copy import PrecisionCopy, torch_threads
from posexport.parity.subjects.runner import Runner
from posexport.sources import builtin
from posexport.sources.cached import cached
from posexport.sources.load import LoadOptions, load_source
from posexport.sources.source import Source

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINTS = sorted(path.name for path in GOLDEN.iterdir() if (path / "config.json").is_file())
#: around a tile of 128 queries, and the first length of whole chunks behind it
LENGTHS = (1, 17, 127, 128, 129, 160)
#: one model for each way to compute its attention by default, and one for each way to call it
FEW = ["encoder-t5", "encoder-relative-key", "decoder-alibi", "decoder-rope", "encoder-decoder-t5"]


def layers(name: str) -> tuple[str, ...]:
    """Two, where the model lets one say so: what a second layer shares with the first takes part."""
    if name not in builtin.models():
        return ()
    return ("layers=2",) if "layers" in builtin.models()[name][0].config.settings() else ()


def convert(name: str, folder: Path, *options: str) -> Path:
    """The bundle that a user gets from the command line, without its proof."""
    given = [word for setting in layers(name) for word in ("--set", setting)]
    argument = str(GOLDEN / name) if name in CHECKPOINTS else name
    ran = CliRunner().invoke(
        group, ["convert", argument, *given, *options, "--no-verify", "-o", str(folder / "bundle")]
    )
    assert ran.exit_code == 0, ran.exception or ran.output
    return folder / "bundle"


def points_of(source: Source) -> list[GridPoint]:
    """Of the grid, few: rows of different lengths, no padding, and each way to split a sequence into calls."""
    limits = source.limits
    chosen = None
    if not (source.limits.proof_image_sizes or source.limits.proof_lengths):
        limit = limits.max_length
        chosen = [n for n in LENGTHS if n >= limits.min_length and (limit is None or n <= limit)]
    points = [p for p in grid(limits, source.inputs, lengths=chosen) if not p.must_be_rejected]
    few = {"none", limits.ragged}
    return [p for p in points if (p.batch > 1 and p.padding in few) or (p.calls and p.batch == 1)]


def check(name: str, folder: Path, *options: str) -> None:
    bundle = convert(name, folder, *options)
    argument = str(GOLDEN / name) if name in CHECKPOINTS else name
    source = load_source(argument, LoadOptions(settings=layers(name)))
    source = cached(source, "static" if "static" in options else "dynamic", "at-write")
    model = model_of(bundle, source.parts)
    points = points_of(source)
    heads = max((m for p in source.module.modules() if isinstance(m := getattr(p, "heads", 0), int)), default=1)
    # the table of waves of transformer-xl with a static cache ends at a length that needs almost 8 GiB
    budget = Budget(outputs=source.outputs, heads=heads, limit=12 << 30)
    # a row alone reaches the longest inputs in the least memory, as in a whole grid
    alone = [msgspec.structs.replace(point, batch=1, padding="none") for point in points if not point.calls][-1:]
    found = cover(source, model, [*points, *alone], provider="cpu", threads=1, budget=budget)
    assert not found.lacking, found.lacking
    names = [spec.name for spec in source.inputs], [spec.name for spec in source.outputs]
    specs = [part.spec for part in source.parts]
    run = Runner(model, inputs=names[0], outputs=names[1], parts=specs, threads=1)
    with torch_threads(1):
        compare(source, run, sorted({*points, *found.added}, key=lambda p: (p.length, p.batch)))


def compare(source: Source, run: Runner, points: list[GridPoint]) -> None:
    """Values at every point by the criterion, PyTorch's own error being its largest at that length."""
    truth, own = (
        PrecisionCopy(source.module, dtype, outputs=len(source.outputs)) for dtype in (torch.float64, torch.float32)
    )
    worst: dict[tuple[int, str], float] = {}
    errors: list[tuple[GridPoint, str, float, str]] = []
    for point in points:
        feeds = draw(point, source.inputs)
        same = point.calls if source.limits.length_dependent else ()
        y64, y32 = (in_calls(each, feeds, source, same) for each in (truth, own))
        got = in_calls(run, feeds, source, point.calls)
        for spec, t, o, y in zip(source.outputs, y64, y32, got, strict=True):
            keep_BT = token_mask(point, source.inputs, spec)
            key = point.length, spec.name
            worst[key] = max(worst.get(key, 0.0), measure(o, t, spec.axes, keep_BT).error)
            measured = measure(y, t, spec.axes, keep_BT)
            errors.append((point, spec.name, measured.error, measured.note))
    missed = [
        f"{output} at {point}: {error:.2g} {note}"
        for point, output, error, note in errors
        if not error <= tolerance("fp32", output, worst[point.length, output])
    ]
    assert not missed, "\n".join(missed[:5])
    assert np.isfinite([error for *_, error, _ in errors]).all()


@pytest.mark.all  # test_convert.py has their kinds of attention
@pytest.mark.parametrize("name", FEW)
def test_what_ships_is_right(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--target", "cpu"), marks=pytest.mark.all),
        pytest.param(("--cache", "static"), marks=pytest.mark.all),
        ("--target", "cpu", "--cache", "static"),
    ],
)
def test_what_ships_for_a_decoder_is_right(options: tuple[str, ...], tmp_path: Path) -> None:
    check("decoder-alibi", tmp_path, *options)


def _everything() -> Iterator[tuple[str, ...]]:
    for name in [*builtin.models(), *CHECKPOINTS]:
        yield (name,)
        yield name, "--target", "cpu"
        if name in CHECKPOINTS:
            continue
        if name.startswith(("decoder-", "encoder-decoder-")):
            yield name, "--cache", "static"
            yield name, "--cache", "static", "--target", "cpu"


@pytest.mark.all
@pytest.mark.parametrize("case", list(_everything()), ids=" ".join)
def test_everything_that_ships_is_right(case: tuple[str, ...], tmp_path: Path) -> None:
    check(case[0], tmp_path, *case[1:])
