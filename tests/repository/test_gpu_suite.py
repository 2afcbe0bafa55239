"""``ci/gpu``: its runner here, its parts in a rehearsal, itself where there is a GPU."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from posexport.base.spec import Limits
from posexport.errors import PosexportError
from posexport.proof.grid.grid import grid
from posexport.proof.grid.inputs import draw
from posexport.proof.references.precision_copy import PrecisionCopy
from posexport.run.providers import check_loads
from posexport.sources import builtin

ROOT = Path(__file__).parents[2]
FOLDERS = [str(ROOT / "ci" / "lab" / "cuda"), str(ROOT / "ci" / "lab" / "cuda_dry")]
sys.path[:0] = FOLDERS
import cases  # noqa: E402, F401  # parts import it when they are asked
import gpu as command  # noqa: E402
import libraries  # noqa: E402  # of ci/lab/cuda_dry
import points  # noqa: E402
import state  # noqa: E402
from bundles import case_of  # noqa: E402
from part import Setup  # noqa: E402
from parts import PARTS, dry_run, parity  # noqa: E402

for folder in FOLDERS:
    sys.path.remove(folder)

BROKEN = ["fails", "raises", "ends its process"]
dry = pytest.mark.skipif(libraries.missing() is not None, reason=libraries.missing() or "")


def missing() -> str | None:
    """Why CUDA does not load; None where it does."""
    try:
        check_loads("cuda")
    except PosexportError as err:
        return str(err)
    return None


def gpu(*args: str | Path, out: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    environment.pop("OUT", None)
    environment |= {} if out is None else {"OUT": str(out)}
    return subprocess.run(
        ["ci/gpu", *map(str, args)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


# -- the runner -------------------------------------------------------------------------------------


@dry
def test_a_failing_part_is_named_and_what_is_done_stays(tmp_path: Path) -> None:
    """Cases that fail, raise and take their process along; the one after them runs; none of them runs again."""
    file = tmp_path / "gpu.json"
    done = gpu("broken", "--rehearse", out=tmp_path)
    assert done.returncode == 1, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("ci/gpu")] == [
        f"ci/gpu: FAILED broken: {case}" for case in BROKEN
    ]
    rows = json.loads(file.read_bytes())["parts"]["broken"]
    assert {case: row["passed"] for case, row in rows.items()} == {**dict.fromkeys(BROKEN, False), "passes": True}
    assert rows["ends its process"]["note"] == "its process ended with 9"
    again = gpu("broken", "--rehearse", "-o", file)
    assert (again.returncode, again.stdout.count("on purpose\n")) == (1, 1), "nothing runs twice"
    assert json.loads(file.read_bytes())["parts"]["broken"] == rows


def test_a_run_goes_on_from_an_older_file(tmp_path: Path) -> None:
    older = state.State(tmp_path / "old.json")
    older.add("limits", "a", {"passed": True, "error": float("inf")})
    older.add("limits", "b", {"passed": False})
    new = state.State(tmp_path / "out" / "gpu.json", tmp_path / "old.json")
    assert new.missing("limits", ["a", "b", "c"]) == ["c"]
    assert new.failed() == ["limits: b"]
    assert new.parts["limits"]["a"]["error"] is None
    again = state.State(tmp_path / "none.json", tmp_path / "old.json", again=True)
    assert again.missing("limits", ["a", "b", "c"]) == ["b", "c"]
    assert state.State(tmp_path / "old.json", anew=True).parts == {}


def test_it_has_its_parts_and_says_what_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "-o", str(tmp_path / "gpu.json")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        p.name for p in PARTS if not p.rehearsed
    ]
    done = gpu("parityy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ci/gpu: unknown part parityy; known: encodings-fp16, ")


@pytest.mark.all
def test_without_cuda_it_says_what_is_missing(tmp_path: Path) -> None:
    reason = missing()
    if reason is None:
        pytest.skip("CUDA loads here")
    done = gpu(out=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"ci/gpu: {reason}\n")
    assert list(tmp_path.iterdir()) == []


# -- what its parts prove ---------------------------------------------------------------------------


LIMITS = Limits()


def planned() -> Iterator[tuple[str, list[int], int]]:
    """Of every proof by float64: its case, its lengths, and how many points it has at most."""
    for precision in parity.COUNTS:
        for of, golden in ((parity.encodings, False), (parity.families, True)):
            for name in of(precision, Setup()):
                index = parity.index_of(name)
                count = parity.COUNTS[precision][golden]
                yield name, points.lengths_of(LIMITS, index, count, 4096), count
    for name in parity.telling(Setup()):
        yield f"{name} tf32", [], parity.COUNTS["fp32"][0]


def test_all_boundaries_are_met_in_every_precision_by_1500_points_at_most() -> None:
    rows = list(planned())
    assert sum(count for *_, count in rows) <= parity.MOST
    wanted = {length for band in points.BANDS for length in band}
    for precision in parity.COUNTS:
        built_in = [
            n for name, lengths, _ in rows if name.startswith(("enc", "dec")) and precision in name for n in lengths
        ]
        assert wanted <= set(built_in), precision
    assert {n % 16 for n in wanted} >= {0, 1, 4, 7, 8, 9, 12, 15}


def test_a_case_takes_points_of_its_lengths() -> None:
    source = builtin.builtin_source("decoder-rope", task=None, settings_given=("layers=1",))
    lengths = points.lengths_of(source.limits, 5, 3, 4096)
    taken = [points.some(index, 3)(grid(source.limits, source.inputs, lengths=lengths)) for index in range(40)]
    assert {tuple(sorted({point.length for point in each})) for each in taken} == {tuple(lengths)}
    every = [point for each in taken for point in each]
    assert {point.padding for point in every} >= {"none", "left", "ragged"}
    assert any(point.calls for point in every)
    assert any(point.batch > 1 for point in every)


@pytest.mark.parametrize(
    "name", ["encoder-t5", "decoder-rope", "encoder-decoder-alibi", *(pytest.param("", marks=pytest.mark.all),)]
)
def test_definitions_compute_on_the_device_that_they_are_on(name: str) -> None:
    """On PyTorch's meta device, which refuses a tensor of the host's as a card does; no name: all definitions."""
    for each in [name] if name else builtin.models():
        source = builtin.builtin_source(each, task=None, settings_given=())
        point = next(p for p in grid(source.limits, source.inputs) if not p.must_be_rejected and p.length > 1)
        copy = PrecisionCopy(source.module, torch.float64, outputs=len(source.outputs), device="meta")
        for part in getattr(copy.copy, "reused", ()):
            part.forward = part.forward._run  # compares values, of which meta has none
        for owner, method in getattr(copy.copy, "reused_calls", ()):
            setattr(owner, method, getattr(owner, method)._run)
        feeds = draw(point, source.inputs)
        found = copy.asked(lambda module, copy=copy, feeds=feeds: module(**copy.tensors(feeds)))
        assert {tensor.device.type for tensor in found} == {"meta"}, each


def test_cases_are_those_of_the_dry_run() -> None:
    rows = json.loads((ROOT / "ci" / "results" / "cuda-dry.json").read_bytes())["rows"]
    keys = {row["case"] for row in rows}
    assert any(key.endswith("filled-slots") for key in keys)
    assert {case_of(key).key for key in keys} == keys


def test_what_differs_from_the_dry_run_is_told() -> None:
    claim = {"attention": {"cudnn": 2}, "to_host": 1, "kernels": 9}
    seen = {"attention": {"cudnn": 2}, "on_cpu": {}, "to_host": 1, "to_device": 0}
    assert list(dry_run.differences(claim, seen)) == []
    assert "attention is {'unfused': 2}" in next(dry_run.differences(claim, {**seen, "attention": {"unfused": 2}}))
    assert "copy to host" in next(dry_run.differences(claim, {**seen, "to_host": 2}))
    assert "on the CPU are {'Add': 1}" in next(dry_run.differences(claim, {**seen, "on_cpu": {"Add": 1}}))
    # of GroupQueryAttention ONNX Runtime prints MATH for kernels of cuDNN: names of kernels that ran decide
    untold = {**seen, "attention": {"not told": 2}}
    assert list(dry_run.differences(claim, untold)) == []
    assert list(dry_run.differences(claim, {**untold, "ran": ["cudnn"]})) == []
    assert "kernels of none ran" in next(dry_run.differences(claim, {**untold, "ran": ["unfused"]}))
    assert list(dry_run.differences({"attention": {"flash": 2}}, untold)) != []
    names = [
        "void pytorch_flash::flash_fwd_splitkv_kernel<x>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma",
    ]
    assert dry_run.kinds_of([*names, "kernel_mha", "softmax_warp_forward", "Memcpy DtoH"]) == [
        "cudnn",
        "flash",
        "unfused",
        "xqa",
    ]


def test_parts_import_nothing_that_a_bare_machine_lacks() -> None:
    """Beside the standard library, what posexport needs, PyTorch, and transformers, of which a card's has some."""
    known = {*sys.stdlib_module_names, "posexport", "torch", "numpy", "onnx", "onnxruntime", "msgspec", "transformers"}
    own = {path.stem for folder in FOLDERS for path in Path(folder).rglob("*.py")} | {"parts", "tiny"}
    for path in (ROOT / "ci" / "lab" / "cuda").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= known | own, path


# -- the rehearsal, and a card ----------------------------------------------------------------------


@dry
@pytest.mark.all
def test_the_rehearsal_runs_every_part_and_one_fails_on_purpose(tmp_path: Path) -> None:
    done = gpu("--rehearse", "--minutes", "30", out=tmp_path)
    failed = [line for line in done.stderr.splitlines() if line.startswith("ci/gpu")]
    assert failed == [f"ci/gpu: FAILED broken: {case}" for case in BROKEN], done.stdout
    assert done.returncode == 1
    found = json.loads((tmp_path / "gpu.json").read_bytes())["parts"]
    assert list(found) == [part.name for part in PARTS]
    for part in PARTS:
        assert list(found[part.name]) == part.cases(part.setup(rehearsal=True)), part.name


@pytest.mark.cuda
def test_the_suite_on_cuda(tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    done = gpu("encodings-fp32", "--minutes", "1", out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["parts"]["encodings-fp32"]
    assert not any(row["strays"] for row in rows.values())
